"""The disk tier that a configuration asks for: opened, measured, and linked to an engine's pool."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octavo.config import EngineConfig
from octavo.engine.load_cost import LoadCost
from octavo.engine.tier_link import TierLink
from octavo.errors import TierInUseError
from octavo.kv.hashing import Namespace
from octavo.model.runner import ForwardBatch, ModelRunner
from octavo.planner import MemoryPlan
from octavo.tiers.disk import DiskTier
from octavo.tiers.folder import TierFolder
from octavo.tiers.probe import seconds_to_read

_PROBE_BLOCKS = 4
_QUICK_SECONDS = 0.3
_LOG = logging.getLogger("octavo.tiers")


@dataclass(frozen=True, slots=True)
class TierSummary:
    """What became of the disk tier at the start.

    Attributes:
        folder: where it is.
        limit: most bytes of all its files; ``num_bytes`` are there.
        num_blocks: blocks that this engine can use.
        num_foreign_blocks: blocks of other models, KV formats, block sizes or versions of Octavo; kept as long as the
            limit does not need their room.
        seconds: that it took to learn what is there.
        problem: why there is no tier after all; ``None``: there is.
    """

    folder: str
    limit: int
    num_bytes: int = 0
    num_blocks: int = 0
    num_foreign_blocks: int = 0
    seconds: float = 0.0
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"no disk tier: {self.problem}"
        foreign = f", {self.num_foreign_blocks:,} of other models or formats" if self.num_foreign_blocks else ""
        return (
            f"disk tier in {self.folder}: {self.num_blocks:,} blocks found in {self.seconds:.2f} s{foreign}, "
            f"{self.num_bytes:,} bytes of at most {self.limit:,}"
        )


class OpenTier(NamedTuple):
    """The tier itself, for who manages it, and what links it to an engine; or why there is none; or nothing."""

    disk: DiskTier | None = None
    link: TierLink | None = None
    summary: TierSummary | None = None


def open_tier(
    config: EngineConfig, namespace: Namespace, runner: ModelRunner, memory: MemoryPlan, label: str
) -> OpenTier:
    """Nothing where ``config`` asks for no tier; where another process has its folder, the reason alone.

    Raises:
        ConfigError: the folder cannot be used, or the limit has no room for a block.
    """
    if config.kv_disk is None or not config.enable_prefix_caching:
        return OpenTier()
    folder_name = str(config.kv_disk)
    try:
        folder = TierFolder(Path(config.kv_disk), limit=config.kv_disk_limit_bytes, ttl=config.kv_disk_ttl)
    except TierInUseError as error:
        _LOG.warning("%s; this one runs without", error)
        return OpenTier(summary=TierSummary(folder_name, config.kv_disk_limit_bytes, problem=str(error)))
    root = namespace.root()
    try:
        tier = DiskTier(
            folder,
            model=root,
            block_bytes=memory.block_bytes,
            block_size=memory.block_size,
            queue_bytes=config.kv_disk_queue_bytes,
        )
    except BaseException:
        folder.close()
        raise
    cost = LoadCost(_seconds_per_token(runner, memory), _seconds_per_block(folder, memory.block_bytes))
    link = TierLink(tier, lambda block_id: runner.pool.block(block_id).data, model=root, label=label, cost=cost)
    gauges = tier.gauges()
    summary = TierSummary(
        folder_name,
        gauges.limit,
        num_bytes=gauges.num_bytes,
        num_blocks=gauges.num_own_blocks,
        num_foreign_blocks=gauges.num_blocks - gauges.num_own_blocks,
        seconds=folder.seconds_to_adopt,
    )
    return OpenTier(tier, link, summary)


def _seconds_per_block(folder: TierFolder, block_bytes: int) -> float:
    """Nothing may exceed the limit, a file of ours for a moment neither: then reading counts as free, until seen."""
    try:
        if folder.num_bytes + _PROBE_BLOCKS * block_bytes > folder.limit:
            return 0.0
        return seconds_to_read(folder.path, _PROBE_BLOCKS * block_bytes) / _PROBE_BLOCKS
    except OSError as error:
        _LOG.warning("%s cannot be measured: %s", folder.path, error.strerror or error)
        return 0.0


def _seconds_per_token(runner: ModelRunner, memory: MemoryPlan) -> float:
    """What a token of a prefill takes: of a short one, which is all that a start has time for."""
    groups = len(memory.group_windows)
    num_blocks = min(_PROBE_BLOCKS, (memory.num_blocks - 1) // groups, memory.max_model_len // memory.block_size)
    if not num_blocks:
        return 0.0
    num_tokens = num_blocks * memory.block_size
    tables = np.arange(1, groups * num_blocks + 1, dtype=np.int32).reshape(groups, 1, num_blocks)
    batch = ForwardBatch(
        token_ids=np.zeros(num_tokens, np.int32),
        query_start_loc=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        block_tables=tables,
        copies=np.array([(0, block) for block in tables.flat], np.int32),
        logit_rows=np.array([num_tokens - 1], np.int32),
    )
    least = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        runner.execute(batch)
        least = min(least, time.perf_counter() - began)
        if least > _QUICK_SECONDS:
            break
    return least / num_tokens
