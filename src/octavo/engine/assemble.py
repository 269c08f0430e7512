"""From a model's name to an engine that runs: where the rooms meet, and where both doors come through."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo import _native
from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.open_tier import TierSummary, open_tier
from octavo.errors import CapacityError, ModelError
from octavo.evaluate.gate import check_kv_quality
from octavo.kv.hashing import Namespace
from octavo.model.base import ModelSource
from octavo.model.runner import ModelRunner
from octavo.model.source import resolve_model
from octavo.model.weights import LoadedModel, load_model
from octavo.planner import MemoryPlan, free_memory, kv_formats, plan
from octavo.text.chat import ChatTemplate, RenderedChat
from octavo.text.loading import load_tokenizer
from octavo.text.prefixes import PrefixStability
from octavo.text.reply_format import ReplyFormat
from octavo.text.tokenizer import TemplateSource, Tokenizer
from octavo.tiers.disk import DiskTier

Progress = Callable[[int, int], None]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StartupSummary:
    """What was started. ``planned_bytes`` of KV pool are the planner's, ``allocated_bytes`` the pool's.

    ``kv_8bit_layers``: layers that keep 8 bits where ``kv_dtype`` has 4. ``disk``: the disk tier, if one was asked for.
    """

    model: str
    architecture: str
    isa: str
    threads: int
    weight_bytes: int
    kv_dtype: str
    block_size: int
    block_bytes: int
    num_blocks: int
    num_tokens: int
    bytes_per_token: int
    planned_bytes: int
    allocated_bytes: int
    max_model_len: int
    seconds: float
    kv_8bit_layers: tuple[int, ...] = ()
    disk: TierSummary | None = None

    def __str__(self) -> str:
        return (
            f"{self.model} ({self.architecture}) on {self.threads} threads, {self.isa}: "
            f"{self.weight_bytes:,} bytes of weights; KV pool of {self.num_blocks:,} blocks "
            f"({self.block_size} tokens, {self.block_bytes:,} bytes each) for {self.num_tokens:,} tokens in "
            f"{self._kv_format}, planned {self.planned_bytes:,} bytes, allocated {self.allocated_bytes:,}; "
            f"context {self.max_model_len:,} tokens; ready in {self.seconds:.2f} s"
            + ("" if self.disk is None else f"; {self.disk}")
        )

    @property
    def _kv_format(self) -> str:
        if not self.kv_8bit_layers:
            return self.kv_dtype
        layers = "layers" if len(self.kv_8bit_layers) > 1 else "layer"
        return f"{self.kv_dtype} (8 bits in {layers} {', '.join(map(str, self.kv_8bit_layers))})"


class Assembly:
    """An engine with what surrounds it: the model's tokenizer, its chat template and the start-up summary.

    ``disk``: its disk tier, to look at and to manage; ``None``: it has none.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: TemplateSource | None,
        summary: StartupSummary,
        disk: DiskTier | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.summary = summary
        self.disk = disk
        self._template = template
        self._compiled: ChatTemplate | None = None

    @cached_property
    def reply_format(self) -> ReplyFormat:
        """How the model's own chat template has it write calls and reasoning.

        Raises:
            TemplateError: there is no template.
        """
        return ReplyFormat.of(self._chat_template(None), self.tokenizer)

    def render(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        documents: Messages | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Render one conversation; see :meth:`octavo.text.chat.ChatTemplate.render`. Any thread may call it.

        ``add_generation_prompt``: by default unless the final message is continued. ``chat_template``: in
        place of the model's own.

        Raises:
            TemplateError: there is no template, or it refuses these messages.
            InvalidRequestError: these are not messages.
        """
        if add_generation_prompt is None:
            add_generation_prompt = continue_final_message is False
        return self._chat_template(chat_template).render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )

    def render_prefix(self, messages: Messages, *, tools: Messages | None = None) -> list[int]:
        """The token ids that every conversation begins with which begins with these messages and tools; see
        :meth:`octavo.text.chat.ChatTemplate.prefix_tokens`. Any thread may call it.

        Raises:
            TemplateError: there is no template, or it refuses these messages.
            InvalidRequestError: these are not messages.
        """
        return self._chat_template(None).prefix_tokens(messages, tools=tools)

    def prefix_stability(self, with_tools: bool) -> PrefixStability:
        """Whether the template leaves the past alone; see :meth:`octavo.text.chat.ChatTemplate.prefix_stability`.

        Raises:
            TemplateError: there is no template.
        """
        return self._chat_template(None).prefix_stability(with_tools)

    def _chat_template(self, given: str | None) -> ChatTemplate:
        if given is not None:
            return ChatTemplate(given, self.tokenizer)
        if self._compiled is None:
            self._compiled = ChatTemplate(self._template, self.tokenizer)
        return self._compiled


def assemble(
    model: str | Path, config: EngineConfig, *, revision: str | None = None, progress: Progress | None = None
) -> Assembly:
    """Find, load and plan; allocate exactly what was planned; return an engine that is ready.

    Args:
        model: see :func:`octavo.model.source.resolve_model`.
        progress: told (bytes done, bytes in all) while the embedded model is fetched and weights are loaded.

    Raises:
        ModelError: the model cannot be found or used.
        ConfigError: the configuration does not fit the model or this machine.
        KVQualityError: the KV format has 4-bit keys, and no evaluation found it good enough for this model.
        CapacityError: the KV memory is too small, or this machine cannot give it.
    """
    began = time.perf_counter()
    source = resolve_model(model, revision=revision, progress=progress)
    tokenizer = load_tokenizer(source.tokenizer_source, source.name)
    _check_weights_fit(source)
    loaded = load_model(
        source, isa=config.isa, threads=config.threads, max_model_len=config.max_model_len, progress=progress
    )
    check_kv_quality(source, loaded, config)
    queued = 0 if config.kv_disk is None else config.kv_disk_queue_bytes
    memory = plan(loaded.spec, config, free_memory=max(free_memory() - queued, 0))
    runner = _runner(loaded, memory, config)
    namespace = _namespace(loaded, config)
    tier = open_tier(config, namespace, runner, memory, f"{_short_name(source.name)} {config.kv_format}")
    engine = Engine(
        config,
        runner,
        memory,
        namespace,
        tokenizer,
        vocab_size=loaded.spec.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids.union(source.eos_token_ids),
        tier=tier.link,
    )
    summary = StartupSummary(
        model=source.name,
        architecture=loaded.spec.architecture,
        isa=loaded.model.isa,
        threads=loaded.model.threads,
        weight_bytes=loaded.model.weight_bytes,
        kv_dtype=str(config.kv_format),
        block_size=memory.block_size,
        block_bytes=memory.block_bytes,
        num_blocks=memory.num_blocks,
        num_tokens=memory.num_tokens,
        bytes_per_token=memory.bytes_per_token,
        planned_bytes=memory.nbytes,
        allocated_bytes=runner.pool.nbytes,
        max_model_len=memory.max_model_len,
        seconds=time.perf_counter() - began,
        kv_8bit_layers=_layers_at_8_bits(loaded, config),
        disk=tier.summary,
    )
    return Assembly(engine, tokenizer, source.chat_template, summary, tier.disk)


def _short_name(name: str) -> str:
    """The last part of a path or hub id."""
    return name.rstrip("/").rsplit("/", 1)[-1]


def _check_weights_fit(source: ModelSource) -> None:
    """Said before they are read: the system would promise the memory and end the process when it runs out."""
    needed, free = source.spec.weight_bytes, free_memory()
    if needed > free:
        raise ModelError(
            f"{source.name} has {needed:,} bytes of weights in bfloat16; {free:,} bytes of memory are free. "
            "Use a smaller model"
        )


def _layers_at_8_bits(loaded: LoadedModel, config: EngineConfig) -> tuple[int, ...]:
    formats = kv_formats(loaded.spec, config)
    return tuple(layer for layer, kv_format in enumerate(formats) if kv_format != config.kv_format)


def _runner(loaded: LoadedModel, memory: MemoryPlan, config: EngineConfig) -> ModelRunner:
    try:
        return ModelRunner(
            loaded.spec,
            loaded.model,
            kv_formats=kv_formats(loaded.spec, config),
            block_size=memory.block_size,
            num_blocks=memory.num_blocks,
            max_logit_rows=config.max_num_running,
        )
    except MemoryError as error:
        raise CapacityError(
            f"this machine cannot give {memory.nbytes:,} bytes for the KV pool; lower kv_memory"
        ) from error


def _namespace(loaded: LoadedModel, config: EngineConfig) -> Namespace:
    return Namespace(
        weights_digest=loaded.weights_digest,
        spec_digest=loaded.spec.digest(),
        kv_formats=tuple(layer.codecs for layer in kv_formats(loaded.spec, config)),
        block_size=config.block_size,
        layout_version=_native.LAYOUT_VERSION,
        numerics_id=loaded.numerics_id,
    )
