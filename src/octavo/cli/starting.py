"""Starting an engine for a command, with what is slow shown on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.cli.progress import byte_progress

if TYPE_CHECKING:
    from octavo.engine.assemble import Assembly
    from octavo.llm import LLM


def open_llm(model: str | None, options: dict[str, Any]) -> LLM:
    """Start the engine that a command asked for.

    Args:
        model: its name; ``None``: the embedded model.
        options: fields of EngineConfig.

    Raises:
        ModelError, ConfigError: as :class:`octavo.LLM`.
    """
    from octavo.llm import LLM

    return LLM.from_assembly(open_assembly(model, options))


def open_assembly(model: str | None, options: dict[str, Any]) -> Assembly:
    """The same without an LLM around it, for a command that takes the engine's steps itself."""
    from octavo.config import EngineConfig
    from octavo.engine.assemble import assemble
    from octavo.model.embedded import EMBEDDED_MODEL, embedded_file
    from octavo.model.source import DEFAULT_MODEL
    from octavo.model.weights import choose_isa

    # What is wrong with the options is said before anything is fetched.
    choose_isa(EngineConfig(**options).isa)
    name = DEFAULT_MODEL if model is None else model
    if name == EMBEDDED_MODEL:
        with byte_progress(f"fetching {name}") as report:
            embedded_file(progress=report)
    with byte_progress(f"loading {name}") as report:
        return assemble(name, EngineConfig(**options), progress=report)


def room_for_output(llm: LLM, num_prompt_tokens: int) -> int:
    """Tokens that may follow a prompt of this length; at least 1, so that a prompt without any is refused."""
    return max(llm.engine.intake.max_request_tokens - num_prompt_tokens, 1)
