"""What an engine says about itself: EngineStats, what it has done; EngineGauges, what it holds right now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from octavo.engine.outputs import FinishReason
from octavo.kv.histogram import Histogram
from octavo.kv.residency import SECONDS
from octavo.tiers.base import TierGauges, TierStats

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets for tokens per step, those of vLLM."""


def _none_finished() -> dict[FinishReason, int]:
    return dict.fromkeys(get_args(FinishReason), 0)


def _durations() -> Histogram:
    return Histogram(SECONDS)


@dataclass(slots=True)
class EngineStats:
    """Counters and histograms of one engine; they only grow. Durations are in seconds.

    Prompt tokens are counted once for all of ``n`` answers, and once however often a request is preempted.

    Attributes:
        num_steps: steps that computed something.
        num_requests: requests accepted, one for each of ``n`` answers.
        num_prompt_tokens: prompt tokens of requests when first scheduled.
        num_queried_tokens: those among them of requests that look into the cache.
        num_cached_tokens: those among them that were read from the cache.
        num_computed_tokens: tokens that went through the model, recomputed ones included.
        num_generated_tokens: tokens drawn.
        num_recomputed_prompt_tokens: prompt tokens that a preemption took and that were computed again.
        num_preemptions: times a running request lost its blocks.
        num_finished: answers that ended, by finish_reason.
        native_seconds: time inside the native core.
        python_seconds: time of all steps outside it.
        tokens_per_step: how many tokens steps computed.
        block_lifetime: of cached blocks that were evicted, since they could be found.
        block_idle_before_evict: of the same, since nobody held them any more.
        block_reuse_gap: of cached blocks that nobody held, until a request took them again.
    """

    num_steps: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_queried_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_recomputed_prompt_tokens: int = 0
    num_preemptions: int = 0
    num_finished: dict[FinishReason, int] = field(default_factory=_none_finished)
    native_seconds: float = 0.0
    python_seconds: float = 0.0
    tokens_per_step: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    block_lifetime: Histogram = field(default_factory=_durations)
    block_idle_before_evict: Histogram = field(default_factory=_durations)
    block_reuse_gap: Histogram = field(default_factory=_durations)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGauges:
    """What one engine holds between two steps. Every usable block is active, cached or free::

        num_blocks  | num_active_blocks | num_cached_blocks | num_free_blocks |
                      a request's         findable            neither

    Blocks that stay cached after a request are no longer active: 0 % of use means an idle engine, not a lost cache.

    Attributes:
        num_running: requests that hold blocks, one for each of ``n`` answers.
        num_waiting: requests that hold none yet, or none any more.
        num_blocks: blocks that can hold tokens: all but the null block.
        num_active_blocks: those that requests hold, shared ones once.
        num_cached_blocks: those that no request holds and a hit can find.
        num_retained_blocks: those among the cached ones that are evicted after all others, until their time is over.
        num_free_blocks: those that hold nothing.
        block_size: tokens per block.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_active_blocks: int
    num_cached_blocks: int
    num_retained_blocks: int
    num_free_blocks: int
    block_size: int

    @property
    def kv_cache_usage(self) -> float:
        """The share of blocks that requests hold, from 0 to 1."""
        return self.num_active_blocks / self.num_blocks


class TierReport(NamedTuple):
    """What a tier has done and holds. ``num_loaded_tokens``: of prompts, read from it and not computed; they are among
    the engine's ``num_cached_tokens``.
    """

    stats: TierStats
    gauges: TierGauges
    num_loaded_tokens: int


class EngineReport(NamedTuple):
    """Counters and gauges of one moment between two steps. ``tier``: ``None`` where there is none."""

    stats: EngineStats
    gauges: EngineGauges
    tier: TierReport | None = None
