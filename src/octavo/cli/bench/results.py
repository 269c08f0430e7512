"""What ``octavo bench cache``, ``prefix``, ``disk`` and ``paging`` measured, and what follows from it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.planner.contiguous import Held, Lengths


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


DISK_WAYS = ("computed", "memory", "disk, in the page cache", "disk, not in the page cache")
"""Where the keys and values of a prompt are when it is asked."""


def _seconds_of_ways() -> dict[str, list[float]]:
    return {way: [] for way in DISK_WAYS}


@dataclass(frozen=True, slots=True)
class DiskPoint:
    """Of prompts of one length, by each of :data:`DISK_WAYS`: seconds to the first token, one for each prompt, and how
    many tokens of the last one were not computed.
    """

    num_prompt_tokens: int
    seconds: dict[str, list[float]] = field(default_factory=_seconds_of_ways)
    num_cached_tokens: dict[str, int] = field(default_factory=dict)

    def median(self, way: str) -> float:
        return statistics.median(self.seconds[way])

    def was_computed(self, way: str) -> bool:
        """Whether the engine chose to compute what it could have read."""
        return self.num_cached_tokens[way] == 0


@dataclass(frozen=True, slots=True)
class DiskResult:
    """One point for each length, ascending. ``engine``: model, instruction set and threads, for people."""

    engine: str
    points: list[DiskPoint]

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "identical": True,  # or there would be no result
            "points": [
                {
                    "num_prompt_tokens": point.num_prompt_tokens,
                    "num_cached_tokens": point.num_cached_tokens,
                    "median_seconds": {way: point.median(way) for way in DISK_WAYS},
                    "seconds": point.seconds,
                }
                for point in self.points
            ],
        }


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What KV memory for ``capacity`` tokens held after each step of a load.

    Shares are of the whole memory, and means over the steps while somebody waited: until then memory is what limits,
    and afterwards it empties.
    """

    capacity: int
    steps: list[Held]

    @property
    def limited(self) -> list[Held]:
        """The steps up to the one that admitted the last request."""
        last = next(number for number, held in enumerate(self.steps) if held.num_waiting == 0)
        return self.steps[: last + 1]

    @property
    def real(self) -> float:
        """The share that holds real tokens."""
        return self._share([held.num_tokens for held in self.limited])

    @property
    def later(self) -> float:
        """The share that is kept for tokens to come."""
        return self._share([held.num_later for held in self.limited])

    @property
    def unused(self) -> float:
        """The share that is kept and will never hold a token."""
        return self._share([held.num_unused for held in self.limited])

    @property
    def free(self) -> float:
        """The share that nobody holds."""
        return 1 - self.real - self.later - self.unused

    @property
    def real_of_reserved(self) -> float:
        """The share of what sequences hold that holds real tokens; 0 where each ends in the step that admits it, and
        nothing is ever held between two steps.
        """
        held = self.real + self.later + self.unused
        return self.real / held if held else 0.0

    @property
    def mean_running(self) -> float:
        return statistics.fmean(held.num_running for held in self.limited)

    @property
    def most_running(self) -> int:
        return max(held.num_running for held in self.steps)

    def as_json(self) -> dict[str, Any]:
        return {
            "mean_running": self.mean_running,
            "most_running": self.most_running,
            "share_real": self.real,
            "share_later": self.later,
            "share_unused": self.unused,
            "share_free": self.free,
            "share_real_of_reserved": self.real_of_reserved,
        }

    def _share(self, counts: list[int]) -> float:
        return statistics.fmean(counts) / self.capacity


@dataclass(frozen=True, slots=True)
class ServedUse:
    """A load that was really served: ``seconds`` of each run, and of the median run the ``moments`` of its steps."""

    use: MemoryUse
    seconds: list[float]
    moments: list[float]
    num_preemptions: int
    num_recomputed_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            **self.use.as_json(),
            "seconds": self.seconds,
            "num_preemptions": self.num_preemptions,
            "num_recomputed_tokens": self.num_recomputed_tokens,
            "moments": self.moments,
            "num_running": [held.num_running for held in self.use.steps],
            "num_tokens": [held.num_tokens for held in self.use.steps],
            "num_reserved": [held.num_reserved for held in self.use.steps],
        }


@dataclass(frozen=True, slots=True)
class PagingResult:
    """One load under one KV memory of ``kv_bytes``. ``engine``: model, instruction set and threads, for people.

    ``contiguous`` reserves ``max_model_len`` tokens for each sequence. ``guesses``, by name: what the memory would hold
    if an answer's length were known better.
    """

    engine: str
    kv_dtype: str
    kv_bytes: int
    block_size: int
    max_model_len: int
    seed: int
    load: list[Lengths]
    contiguous: ServedUse
    guesses: dict[str, MemoryUse]
    paged: ServedUse

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.load)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.load)

    @property
    def speedup(self) -> float:
        return statistics.median(self.contiguous.seconds) / statistics.median(self.paged.seconds)

    def tokens_per_second(self, way: ServedUse) -> float:
        """Output tokens, over the whole load."""
        return self.num_output_tokens / statistics.median(way.seconds)

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "kv_dtype": self.kv_dtype,
            "kv_bytes": self.kv_bytes,
            "kv_tokens": self.paged.use.capacity,
            "block_size": self.block_size,
            "max_model_len": self.max_model_len,
            "seed": self.seed,
            "num_requests": len(self.load),
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": self.num_output_tokens,
            "speedup": self.speedup,
            "identical": True,  # or there would be no result
            "contiguous": self._served(self.contiguous),
            "guesses": {name: use.as_json() for name, use in self.guesses.items()},
            "paged": self._served(self.paged),
        }

    def _served(self, way: ServedUse) -> dict[str, Any]:
        return {"tokens_per_second": self.tokens_per_second(way), **way.as_json()}
