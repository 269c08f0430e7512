"""Histogram: how often values fell into fixed buckets, as Prometheus has it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts of values up to each of ``bounds``, and their sum.

    Args:
        bounds: upper bounds of the buckets, ascending; a value equal to a bound is below it. A last bucket without a
            bound has the rest.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum: float = 0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Mutates: count ``value``."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound with how many values were not above it; the last bound is infinity and has all of them."""
        return list(zip((*self.bounds, float("inf")), accumulate(self._counts), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return (self.bounds, self._counts, self.sum) == (other.bounds, other._counts, other.sum)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, sum={self.sum})"
