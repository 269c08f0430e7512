"""EngineStats: what an engine has done since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counters of one engine; they only grow.

    Attributes:
        num_steps: steps that computed something.
        num_requests: requests accepted, one for each of ``n`` answers.
        num_prompt_tokens: prompt tokens of requests when first scheduled.
        num_cached_tokens: those among them that were read from the cache.
        num_computed_tokens: tokens that went through the model, recomputed ones included.
        num_generated_tokens: tokens drawn.
        num_preemptions: times a running request lost its blocks.
        native_seconds: time inside the native core.
        python_seconds: time of all steps outside it.
    """

    num_steps: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    native_seconds: float = 0.0
    python_seconds: float = 0.0
