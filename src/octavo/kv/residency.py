"""Residency: how long cached blocks live, lie idle and wait for their next use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.kv.histogram import Histogram

SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Upper bounds of the buckets: from one answer after another to a day, the usual times to live among them."""


class Watcher(Protocol):
    """Who is told what becomes of a published block, right when it happens::

    published   dropped    taken      dropped             evicted
        | held     |  idle   |  held    |       idle         |
                   <--------->          <-------------------->
                    reuse_gap             idle_before_evict
        <---------------------------------------------------->
                               lifetime
    """

    def published(self, block_id: int) -> None:
        """A hit can find it from now on."""

    def dropped(self, block_id: int) -> None:
        """Its last holder let go of it."""

    def taken(self, block_id: int) -> None:
        """A sequence took it, by a hit or having computed the same, and nobody else held it."""

    def evicted(self, block_id: int) -> None:
        """It was forgotten to make room."""


class Residency:
    """Keeps the times of every published block, and a histogram of each of three durations, in seconds.

    A block that others hold while one more takes it was not waiting, so only idle blocks are counted in ``reuse_gap``.
    What is forgotten on demand, or written on by the request that took it, was not evicted and is counted nowhere.

    Args:
        num_blocks: all there are, the null block included.
        clock: seconds from any fixed moment on; it never goes back.
    """

    __slots__ = ("_clock", "_dropped", "_published", "idle_before_evict", "lifetime", "reuse_gap")

    def __init__(self, num_blocks: int, clock: Callable[[], float]) -> None:
        self.lifetime = Histogram(SECONDS)
        self.idle_before_evict = Histogram(SECONDS)
        self.reuse_gap = Histogram(SECONDS)
        self._clock = clock
        self._published = [0.0] * num_blocks
        self._dropped = [0.0] * num_blocks

    def published(self, block_id: int) -> None:
        self._published[block_id] = self._clock()

    def dropped(self, block_id: int) -> None:
        self._dropped[block_id] = self._clock()

    def taken(self, block_id: int) -> None:
        self.reuse_gap.observe(self._clock() - self._dropped[block_id])

    def evicted(self, block_id: int) -> None:
        now = self._clock()
        self.lifetime.observe(now - self._published[block_id])
        self.idle_before_evict.observe(now - self._dropped[block_id])


class Unwatched:
    """For who does not want to know."""

    def published(self, block_id: int) -> None: ...
    def dropped(self, block_id: int) -> None: ...
    def taken(self, block_id: int) -> None: ...
    def evicted(self, block_id: int) -> None: ...
