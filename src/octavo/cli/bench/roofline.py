"""The roofline: how fast a machine can be at most, by the bytes that must move and the operations that must happen.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.formats.kv_format import KVFormat
    from octavo.llm import LLM
    from octavo.model.spec import ModelSpec

Bound = Literal["memory", "arithmetic"]


@dataclass(frozen=True, slots=True)
class Work:
    """What cannot be avoided: bytes read from memory, and operations on them (a multiply and an add are two)."""

    bytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class Roof:
    """What the machine gives right now: bytes read and bfloat16 operations, both per second."""

    bytes_per_second: float
    operations_per_second: float

    def least_seconds(self, work: Work) -> float:
        """No machine with this roof does the work in less."""
        return max(work.bytes / self.bytes_per_second, work.operations / self.operations_per_second)

    def mean(self, other: Roof) -> Roof:
        """Half-way between two measurements: one before and one after something else."""
        return Roof(
            (self.bytes_per_second + other.bytes_per_second) / 2,
            (self.operations_per_second + other.operations_per_second) / 2,
        )

    def bound(self, work: Work) -> Bound:
        """Which of the two takes longer."""
        reading = work.bytes / self.bytes_per_second
        return "memory" if reading >= work.operations / self.operations_per_second else "arithmetic"


def measure_roof(llm: LLM) -> Roof:
    """Measure it, on the threads and with the instruction set of this engine. Takes about half a second."""
    from octavo import _native

    return Roof(*_native.measure_roof(llm.summary.isa, llm.summary.threads))


def decode_step(spec: ModelSpec, formats: Sequence[KVFormat], count: int, context: float) -> Work:
    """One token more for each of ``count`` sequences that have ``context`` tokens: all weights, all keys and values.

    ``formats`` are the KV formats of the layers.
    """
    head = spec.vocab_size * spec.hidden_size
    weights = _weights_of_layers(spec) + head
    keys = [_keys_seen(layer.window, context) for layer in spec.layers]
    per_key = [spec.num_kv_heads * layer.bytes_per_token(spec.head_dim) for layer in formats]
    return Work(
        bytes=2 * weights + count * sum(seen * size for seen, size in zip(keys, per_key, strict=True)),
        operations=count * (2 * weights + sum(keys) * _operations_per_key(spec)),
    )


def prefill(spec: ModelSpec, count: int, length: int) -> Work:
    """``count`` prompts of ``length`` tokens, computed and not continued: the output head is not needed."""
    weights = _weights_of_layers(spec)
    pairs = sum(_pairs_seen(layer.window, length) for layer in spec.layers)
    return Work(
        bytes=2 * weights,
        operations=count * (2 * weights * length + pairs * _operations_per_key(spec)),
    )


def _weights_of_layers(spec: ModelSpec) -> int:
    """Elements of all matrices that every token meets."""
    shapes = spec.tensor_shapes().items()
    return sum(math.prod(shape) for (_, layer), shape in shapes if layer >= 0 and len(shape) == 2)


def _operations_per_key(spec: ModelSpec) -> int:
    """Of one query token with one key in one layer: a score, and a weighted value."""
    return 4 * spec.num_heads * spec.head_dim


def _keys_seen(window: int | None, context: float) -> float:
    return context if window is None else min(context, window)


def _pairs_seen(window: int | None, length: int) -> int:
    """Queries times keys of a prompt, each query seeing those up to itself, or the last ``window`` of them."""
    full = length if window is None else min(length, window)
    return full * (full + 1) // 2 + (length - full) * full
