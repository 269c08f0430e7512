"""Bytes per token and per block, exactly as the allocator counts them, and how many blocks a load takes."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.formats.kv_format import KVFormat, layer_formats
from octavo.kv.windows import blocks_held
from octavo.model.spec import ModelSpec

BLOCK_ALIGNMENT = 64
"""A block is padded once to whole cache lines."""


def kv_formats(spec: ModelSpec, config: EngineConfig) -> tuple[KVFormat, ...]:
    """The KV format of each layer.

    Raises:
        ConfigError: this model's head_dim does not fit the format, or it has no such layer.
    """
    kv_format = config.kv_format
    if not kv_format.suits(spec.head_dim):
        raise ConfigError(
            f"kv_dtype {str(kv_format)!r} needs a head_dim that is a multiple of {kv_format.head_dim_step}; this "
            f"model's is {spec.head_dim}. Use int8 or fp8"
        )
    kept = config.kv_8bit_layers or ()
    if kept and kept[-1] >= spec.num_layers:
        raise ConfigError(f"kv_8bit_layers names layer {kept[-1]}; this model has layers 0 to {spec.num_layers - 1}")
    return layer_formats(kv_format, spec.num_layers, kept)


def needs_evaluation(formats: Sequence[KVFormat]) -> bool:
    """Whether an engine starts with these formats of its layers only where ``octavo eval-kv`` has passed them."""
    return any(layer.is_gated for layer in formats)


def bytes_per_token(spec: ModelSpec, formats: Sequence[KVFormat]) -> int:
    """KV bytes of one token in every layer, ``formats`` giving each layer's: the formula, without padding."""
    return spec.num_kv_heads * sum(layer.bytes_per_token(spec.head_dim) for layer in formats)


def bytes_per_block(spec: ModelSpec, block_size: int, formats: Sequence[KVFormat]) -> int:
    """Bytes of one block: one layer group's keys and values of ``block_size`` tokens, padded once.

    Groups share one pool, so every block is as large as the group that takes most needs. ``formats`` are the layers'.
    """
    per_token = max(sum(formats[layer].bytes_per_token(spec.head_dim) for layer in group) for group in spec.kv_groups)
    payload = spec.num_kv_heads * per_token * block_size
    return -(-payload // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT


def blocks_of_load(
    spec: ModelSpec, context: int, concurrency: int, *, block_size: int, max_num_batched_tokens: int
) -> int:
    """The most blocks that ``concurrency`` sequences of ``context`` tokens hold at once, the null block not counted.

    A group of layers with a window holds the blocks of the window and those that a step adds. All sequences share the
    ``max_num_batched_tokens`` of a step, so together they add less than each of them could alone.
    """

    def held(window: int | None, step: int) -> int:
        return blocks_held(context, window, block_size=block_size, max_step_tokens=step)

    most = 0
    for window in spec.group_windows:
        # t tokens of a step begin at most ceil((t - 1) / block_size) blocks more than one token does.
        added = concurrency + max(max_num_batched_tokens - concurrency, 0) // block_size
        most += min(concurrency * held(window, max_num_batched_tokens), concurrency * held(window, 1) + added)
    return most
