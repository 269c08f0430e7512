"""The ledger: what every request used, counted once. Usage fields, metrics and logs are renderings of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.engine.outputs import RequestMetrics


@dataclass(slots=True)
class Usage:
    """Tokens of one request.

    Attributes:
        prompt_tokens: of the whole prompt, counted once for all answers to it.
        cached_tokens: those among them that were read from the cache.
        output_tokens: of all answers together, end tokens included.
        reasoning_tokens: those among them that belong to reasoning.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def openai(self) -> dict[str, Any]:
        """``usage`` of chat completions and completions: prompt_tokens includes what was cached."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    def openai_responses(self) -> dict[str, Any]:
        """``usage`` of responses."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }

    def anthropic(self) -> dict[str, Any]:
        """``usage`` of messages: input_tokens excludes what was read from the cache."""
        return {
            "input_tokens": self.prompt_tokens - self.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": self.output_tokens,
        }

    def opentelemetry(self) -> dict[str, int]:
        """Attributes of a span, after the semantic conventions for generative AI: input includes cached."""
        return {
            "gen_ai.usage.input_tokens": self.prompt_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": self.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": 0,
        }

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.reasoning_tokens += other.reasoning_tokens


@dataclass(slots=True)
class Entry:
    """One admitted request in the ledger.

    ``outcomes``: how each of its answers ended: ``stop``, ``length``, ``abort`` (client gone), ``timeout``, ``error``.
    ``times``: the engine's own; ``None`` if it never got there.
    """

    request_id: str
    endpoint: str
    tenant: str
    usage: Usage = field(default_factory=Usage)
    outcomes: list[str] = field(default_factory=list)
    times: RequestMetrics | None = None


class Ledger:
    """Totals over all requests since the start, live: they grow with each increment that is delivered."""

    def __init__(self) -> None:
        self.total = Usage()
        self._observers: list[Callable[[Entry], None]] = []

    def observe(self, observer: Callable[[Entry], None]) -> None:
        """Have ``observer`` called with each entry when its request has ended, however it ended."""
        self._observers.append(observer)

    def count_prompt(self, entry: Entry, prompt_tokens: int, cached_tokens: int) -> None:
        for usage in (entry.usage, self.total):
            usage.prompt_tokens += prompt_tokens
            usage.cached_tokens += cached_tokens

    def count_output(self, entry: Entry, output_tokens: int, reasoning_tokens: int) -> None:
        for usage in (entry.usage, self.total):
            usage.output_tokens += output_tokens
            usage.reasoning_tokens += reasoning_tokens

    def close(self, entry: Entry) -> None:
        """The request of ``entry`` has ended. Called once for each."""
        for observer in self._observers:
            observer(entry)
