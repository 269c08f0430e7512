"""The KV pool an engine starts with, decided before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError
from octavo.model.spec import ModelSpec
from octavo.planner.sizes import bytes_per_block, bytes_per_token, kv_formats

MAX_BLOCKS = 2**31 - 1
"""A block id is an int32."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the KV pool will be: the start-up summary prints it and the allocator follows it.

    ``num_blocks`` counts the null block, which holds no tokens; ``num_groups`` blocks hold ``block_size`` tokens.
    """

    block_size: int
    block_bytes: int
    num_blocks: int
    num_groups: int
    bytes_per_token: int
    max_model_len: int

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens the pool can hold at once."""
        return (self.num_blocks - 1) // self.num_groups * self.block_size


def plan(spec: ModelSpec, config: EngineConfig, *, free_memory: int) -> MemoryPlan:
    """Decide the KV pool before anything is allocated.

    Args:
        free_memory: bytes free on the machine after the weights are loaded.

    Raises:
        ConfigError: ``max_model_len`` is more than the model allows, or the KV format does not fit the model.
        CapacityError: the budget cannot hold one request of ``max_model_len`` tokens, or is more than there is.
    """
    if config.max_model_len is not None and config.max_model_len > spec.max_position_embeddings:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is more than this model's context of "
            f"{spec.max_position_embeddings} tokens"
        )
    formats = kv_formats(spec, config)
    block_bytes = bytes_per_block(spec, config.block_size, formats)
    groups = len(spec.kv_groups)
    wanted_len = config.max_model_len or spec.max_position_embeddings
    per_sequence = -(-wanted_len // config.block_size) * groups
    if config.kv_memory_bytes is not None:
        # The system would promise more than it has, and end the process when the pool fills.
        if config.kv_memory_bytes > free_memory:
            raise CapacityError(
                f"kv_memory is {config.kv_memory_bytes:,} bytes; {free_memory:,} bytes are free. Lower kv_memory"
            )
        budget = config.kv_memory_bytes
        num_blocks = min(budget // block_bytes, MAX_BLOCKS)
    else:
        most_useful = min(1 + per_sequence * config.max_num_seqs, MAX_BLOCKS)
        budget = int(free_memory * config.kv_memory_share)
        num_blocks = min(budget // block_bytes, most_useful)
    held = (num_blocks - 1) // groups * config.block_size
    if held < 1 or (config.max_model_len is not None and held < config.max_model_len):
        needed = (1 + (per_sequence if config.max_model_len is not None else groups)) * block_bytes
        length = config.max_model_len or config.block_size
        raise CapacityError(
            f"KV memory of {budget:,} bytes holds {max(held, 0)} tokens, too few for one request of "
            f"{length} tokens, which takes {needed:,} bytes; raise kv_memory or lower max_model_len"
        )
    return MemoryPlan(
        block_size=config.block_size,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        num_groups=groups,
        bytes_per_token=bytes_per_token(spec, formats),
        max_model_len=min(wanted_len, held),
    )
