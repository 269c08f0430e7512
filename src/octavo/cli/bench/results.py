"""What ``octavo bench cache`` and ``octavo bench prefix`` measured, and what follows from it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CacheResult:
    """Both ways. ``cached[i]``: seconds that output token i took with the cache, the median of three replies; the first
    one with the prompt before it. ``uncached[j]``: what token ``steps[j]`` took without; ``steps`` are all of them, or
    one in ``every`` and the last. ``engine``: model, instruction set and threads, for people.
    """

    engine: str
    num_prompt_tokens: int
    every: int
    cached: list[float]
    steps: list[int]
    uncached: list[float]

    @property
    def positions(self) -> list[int]:
        """Tokens of context that each output token was computed from."""
        return [self.num_prompt_tokens + step for step in range(len(self.cached))]

    @property
    def is_interpolated(self) -> bool:
        return len(self.steps) < len(self.cached)

    @property
    def cached_total(self) -> float:
        return sum(self.cached)

    @property
    def uncached_total(self) -> float:
        """Steps that were not run count with a time interpolated between their neighbours."""
        import numpy as np

        return float(np.interp(range(len(self.cached)), self.steps, self.uncached).sum())

    @property
    def speedup(self) -> float:
        return self.uncached_total / self.cached_total

    @property
    def cached_fit(self) -> statistics.LinearRegression:
        """Seconds against position, by least squares. The first token waits for the prompt and is left out."""
        return statistics.linear_regression(self.positions[1:], self.cached[1:])

    @property
    def uncached_fit(self) -> statistics.LinearRegression:
        positions = self.positions
        return statistics.linear_regression([positions[step] for step in self.steps], self.uncached)

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": len(self.cached),
            "speedup": self.speedup,
            "identical": True,  # or there would be no result
            "with_cache": {
                "total_seconds": self.cached_total,
                "seconds_per_token_of_context": self.cached_fit.slope,
                "seconds": self.cached,
            },
            "without_cache": {
                "total_seconds": self.uncached_total,
                "total_is_interpolated": self.is_interpolated,
                "seconds_per_token_of_context": self.uncached_fit.slope,
                "steps": self.steps,
                "seconds": self.uncached,
            },
        }


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds to the first token, one for each run, where ``percent`` of the prompt had been computed before.

    ``num_cached_tokens``: those that were read from the cache. The last token of a prompt is always computed.
    """

    percent: int
    num_cached_tokens: int
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class PrefixResult:
    """One point for each share, ascending. ``engine``: model, instruction set and threads, for people."""

    engine: str
    num_prompt_tokens: int
    points: list[Point]

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "num_prompt_tokens": self.num_prompt_tokens,
            "identical": True,  # or there would be no result
            "points": [
                {
                    "percent": point.percent,
                    "num_cached_tokens": point.num_cached_tokens,
                    "median_seconds": point.median,
                    "seconds": point.seconds,
                }
                for point in self.points
            ],
        }
