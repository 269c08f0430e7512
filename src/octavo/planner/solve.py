"""Memory, context, concurrency and KV format: three of them given, the fourth found. Exact, and from a spec alone."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from octavo.config import MAX_BYTES, EngineConfig, parse_bytes, parse_tokens
from octavo.errors import CapacityError, ConfigError, shown
from octavo.formats.kv_format import KV_DTYPES
from octavo.model.spec import ModelSpec
from octavo.planner.pool import MAX_BLOCKS
from octavo.planner.sizes import blocks_of_load, bytes_per_block, bytes_per_token, kv_formats, needs_evaluation

PROCESS_BYTES = 128 * 2**20
"""What is set aside beside weights, KV cache and logits: Python, the tokenizer, buffers of a step. An allowance."""

Solved = Literal["memory", "context", "concurrency", "kv_dtype", "nothing"]


@dataclass(frozen=True, slots=True)
class Plan:
    """An engine whose memory is known. ``settings`` starts it.

    Attributes:
        memory: bytes that may be used in all; where they were what was asked for, the bytes that are used.
        context: tokens of prompt and output that every sequence may have.
        concurrency: sequences that can have them at once.
        solved: which of the four was found; ``"nothing"``: all were given, and fit.
        weight_bytes: weights in bfloat16.
        process_bytes: set aside for the process itself: :data:`PROCESS_BYTES`, and the logits of a step.
        bytes_per_token: KV bytes of a token in all layers, by the formula.
        bytes_per_block: bytes of a block of ``block_size`` tokens of a layer group, as allocated.
        num_blocks: blocks of the KV pool, the null block included.
    """

    memory: int
    context: int
    concurrency: int
    kv_dtype: str
    solved: Solved
    kv_8bit_layers: tuple[int, ...] | None
    block_size: int
    weight_bytes: int
    process_bytes: int
    bytes_per_token: int
    bytes_per_block: int
    num_blocks: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV pool, to the byte."""
        return self.num_blocks * self.bytes_per_block

    @property
    def spare_bytes(self) -> int:
        """What is left of ``memory``."""
        return self.memory - self.weight_bytes - self.process_bytes - self.kv_bytes

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of :class:`octavo.EngineConfig`, and so arguments of :class:`octavo.LLM`, that start this engine."""
        settings: dict[str, Any] = {
            "kv_memory": self.kv_bytes,
            "kv_dtype": self.kv_dtype,
            "max_model_len": self.context,
            "max_num_seqs": self.concurrency,
            "block_size": self.block_size,
        }
        if self.kv_8bit_layers is not None:
            settings["kv_8bit_layers"] = self.kv_8bit_layers
        return settings


def solve(
    spec: ModelSpec,
    *,
    memory: int | str | None = None,
    context: int | str | None = None,
    concurrency: int | None = None,
    kv_dtype: str | None = None,
    kv_8bit_layers: Sequence[int] | None = None,
    block_size: int = 16,
) -> Plan:
    """Find the one of memory, context, concurrency and KV format that is left out.

    The largest context or concurrency that fits, the least memory, or the first of ``bf16``, ``int8``, ``fp8``,
    ``int4``, ``int4-full`` that fits. Where more is left out, the format is bf16; and of context and concurrency both,
    the context is the longest that one sequence can have, and the concurrency what then fits.

    Args:
        memory: for weights, KV cache and the process together: bytes, or text such as ``"16GiB"``.
        context: tokens of prompt and output of every sequence, or text such as ``"8k"``.
        concurrency: sequences of that many tokens that run at once.
        kv_dtype, kv_8bit_layers, block_size: as of :class:`octavo.EngineConfig`.

    Raises:
        ConfigError: a value is out of range, does not fit the model, or memory is left out with context or concurrency.
        CapacityError: it does not fit; the message says by how much, and what would fit.
    """
    config = EngineConfig(kv_dtype=kv_dtype or "bf16", kv_8bit_layers=kv_8bit_layers, block_size=block_size)
    budget = None if memory is None else parse_bytes(memory)
    length = None if context is None else _checked_context(spec, context)
    count = None if concurrency is None else _checked_concurrency(config, concurrency)
    if budget is None:
        if length is None or count is None:
            raise ConfigError("memory can be found for a context and a concurrency; give both of them, or memory")
        return _Question(spec, config, MAX_BYTES).plan(length, count, "memory")
    question = _Question(spec, config, budget)
    if length is None:
        return _longest(question, count)
    if count is None:
        return question.plan(length, max(question.most_sequences(length), 1), "concurrency")
    if kv_dtype is None:
        return _finest(question, length, count)
    return question.plan(length, count, "nothing")


def _longest(question: _Question, concurrency: int | None) -> Plan:
    longest = max(question.longest_context(concurrency or 1), 1)
    if concurrency is not None:
        return question.plan(longest, concurrency, "context")
    return question.plan(longest, max(question.most_sequences(longest), 1), "concurrency")


def _finest(question: _Question, context: int, concurrency: int) -> Plan:
    """The first format that fits, in their order: from exact to coarse."""
    for candidate in question.formats():
        if candidate.fits(context, concurrency):
            return candidate.plan(context, concurrency, "kv_dtype")
    return question.formats()[-1].plan(context, concurrency, "kv_dtype")


@dataclass(frozen=True, slots=True)
class _Question:
    """One model in one KV format, and ``memory`` bytes for it. Contexts and concurrencies are asked about."""

    spec: ModelSpec
    config: EngineConfig
    memory: int

    def plan(self, context: int, concurrency: int, solved: Solved) -> Plan:
        """The plan for that load.

        Raises:
            CapacityError: it does not fit.
        """
        if not self.fits(context, concurrency):
            raise CapacityError(self._refusal(context, concurrency))
        needed = self.bytes_needed(context, concurrency)
        formats, layers = kv_formats(self.spec, self.config), self.config.kv_8bit_layers
        return Plan(
            memory=needed if solved == "memory" else self.memory,
            context=context,
            concurrency=concurrency,
            kv_dtype=str(self.config.kv_format),
            solved=solved,
            kv_8bit_layers=None if layers is None else tuple(layers),
            block_size=self.config.block_size,
            weight_bytes=self.spec.weight_bytes,
            process_bytes=self._process_bytes(concurrency),
            bytes_per_token=bytes_per_token(self.spec, formats),
            bytes_per_block=self._block_bytes,
            num_blocks=self._num_blocks(context, concurrency),
        )

    def fits(self, context: int, concurrency: int) -> bool:
        return (
            self._num_blocks(context, concurrency) <= MAX_BLOCKS
            and self.bytes_needed(context, concurrency) <= self.memory
        )

    def longest_context(self, concurrency: int) -> int:
        """0 if not even one token fits."""
        return _largest(self.spec.max_position_embeddings, lambda context: self.fits(context, concurrency))

    def most_sequences(self, context: int) -> int:
        """0 if not even one sequence fits."""
        return _largest(self.config.max_num_batched_tokens, lambda concurrency: self.fits(context, concurrency))

    def formats(self) -> list[_Question]:
        """The same in every format that has a name and that this model's head_dim allows, finest first."""
        return [
            replace(self, config=replace(self.config, kv_dtype=name))
            for name, kv_format in KV_DTYPES.items()
            if kv_format.suits(self.spec.head_dim)
        ]

    def bytes_needed(self, context: int, concurrency: int) -> int:
        return self._bytes_beside_kv(concurrency) + self._num_blocks(context, concurrency) * self._block_bytes

    @property
    def _block_bytes(self) -> int:
        return bytes_per_block(self.spec, self.config.block_size, kv_formats(self.spec, self.config))

    def _num_blocks(self, context: int, concurrency: int) -> int:
        config = self.config
        return 1 + blocks_of_load(
            self.spec,
            context,
            concurrency,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )

    def _process_bytes(self, concurrency: int) -> int:
        return PROCESS_BYTES + 4 * concurrency * self.spec.vocab_size

    def _bytes_beside_kv(self, concurrency: int) -> int:
        return self.spec.weight_bytes + self._process_bytes(concurrency)

    def _refusal(self, context: int, concurrency: int) -> str:
        """By how much it does not fit, and what would."""
        needed = self.bytes_needed(context, concurrency)
        load = f"{_number(concurrency, 'sequence')} of {_number(context, 'token')} in {self.config.kv_format}"
        if self._num_blocks(context, concurrency) > MAX_BLOCKS:
            return f"{load} take more than the {MAX_BLOCKS:,} blocks that a KV pool can have; raise block_size"
        beside = self._bytes_beside_kv(concurrency)
        missing = needed - self.memory
        taken = f"weights and the process take {beside:,} bytes, {load} {needed - beside:,} bytes of KV cache"
        would = [f"memory of {needed:,} bytes ({_no_less(needed)})", *self._alternatives(context, concurrency)]
        return f"{missing:,} bytes too few in {self.memory:,}: {taken}. What would fit: {'; '.join(would)}"

    def _format_in_words(self) -> str:
        gated = needs_evaluation(kv_formats(self.spec, self.config))
        return f"{self.config.kv_format}{' (after octavo eval-kv)' if gated else ''}"

    def _alternatives(self, context: int, concurrency: int) -> list[str]:
        formats = [other._format_in_words() for other in self.formats() if other.fits(context, concurrency)]
        longest, most = self.longest_context(concurrency), self.most_sequences(context)
        return [
            *([f"kv_dtype {' or '.join(formats)}"] if formats else []),
            *([f"a context of {_number(longest, 'token')}"] if longest else []),
            *([f"a concurrency of {most:,}"] if most else []),
        ]


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to ``limit`` that fits, or 0. Whatever is smaller than one that fits does too."""
    return bisect.bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))


def _checked_context(spec: ModelSpec, given: int | str) -> int:
    context = parse_tokens(given)
    if context > spec.max_position_embeddings:
        raise ConfigError(
            f"a context of {context:,} tokens is more than this model's of {spec.max_position_embeddings:,}"
        )
    return context


def _checked_concurrency(config: EngineConfig, concurrency: object) -> int:
    limit = config.max_num_batched_tokens  # a running sequence needs a token of every step
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= limit:
        raise ConfigError(
            f"concurrency must be a whole number from 1 to {limit}, the sequences of a step; got {shown(concurrency)}"
        )
    return concurrency


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _no_less(size: int) -> str:
    """``"16.09GiB"``, as it can be given for ``memory``: rounded up, so that it is enough."""
    if size < 2**30:
        return f"{-(-size * 10 // 2**20) / 10:.1f}MiB"
    return f"{-(-size * 100 // 2**30) / 100:.2f}GiB"
