"""The KV pool an engine starts with, decided before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError
from octavo.kv.windows import longest_sequence
from octavo.model.spec import ModelSpec
from octavo.planner.sizes import blocks_of_load, bytes_per_block, bytes_per_token, kv_formats

MAX_BLOCKS = 2**31 - 1
"""A block id is an int32."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the KV pool will be: the start-up summary prints it and the allocator follows it.

    ``num_blocks`` counts the null block, which holds no tokens. Each layer group has blocks of its own for
    ``block_size`` tokens; one of ``group_windows`` is None where a group's layers see all keys. In a step at most
    ``max_num_batched_tokens`` are computed, so a group with a window never holds more than the window and as many.
    """

    block_size: int
    block_bytes: int
    num_blocks: int
    group_windows: tuple[int | None, ...]
    max_num_batched_tokens: int
    bytes_per_token: int
    max_model_len: int

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def longest_request(self) -> int | None:
        """The most tokens of a single request that the pool can hold, whatever the context. None: any number, for
        every group has a window, and the blocks suffice for them all.
        """
        return longest_sequence(
            self.num_blocks - 1,
            self.group_windows,
            block_size=self.block_size,
            max_step_tokens=self.max_num_batched_tokens,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of one request that the pool can hold: ``longest_request``, or ``max_model_len`` where that is None.

        Without windows, those that it can hold of any number of requests.
        """
        longest = self.longest_request
        return self.max_model_len if longest is None else longest


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
    wanted_len = config.max_model_len or spec.max_position_embeddings
    limits = {"block_size": config.block_size, "max_num_batched_tokens": config.max_num_batched_tokens}
    if config.kv_memory_bytes is not None:
        # The system would promise more than it has, and end the process when the pool fills.
        if config.kv_memory_bytes > free_memory:
            raise CapacityError(
                f"kv_memory is {config.kv_memory_bytes:,} bytes; {free_memory:,} bytes are free. Lower kv_memory"
            )
        budget = config.kv_memory_bytes
        num_blocks = min(budget // block_bytes, MAX_BLOCKS)
    else:
        most_useful = min(1 + blocks_of_load(spec, wanted_len, config.max_num_seqs, **limits), MAX_BLOCKS)
        budget = int(free_memory * config.kv_memory_share)
        num_blocks = min(budget // block_bytes, most_useful)
    planned = MemoryPlan(
        **limits,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        group_windows=spec.group_windows,
        bytes_per_token=bytes_per_token(spec, formats),
        max_model_len=wanted_len,
    )
    held = planned.num_tokens
    if held < 1 or (config.max_model_len is not None and held < config.max_model_len):
        length = config.max_model_len or config.block_size
        needed = (1 + blocks_of_load(spec, length, 1, **limits)) * block_bytes
        raise CapacityError(
            f"KV memory of {budget:,} bytes holds {held} tokens, too few for one request of "
            f"{length} tokens, which takes {needed:,} bytes; raise kv_memory or lower max_model_len"
        )
    return replace(planned, max_model_len=min(wanted_len, held))
