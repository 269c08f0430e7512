"""FreeBlocks: the blocks nobody holds, and which of them is reused next. Retained: those that are kept for longer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from octavo.kv.block import Block, BlockError, FreeBlockQueue


class FreeBlocks:
    """Free blocks in order of reuse; whoever needs memory gets all of them::

        | unpublished | ordinary                    | retained    |
          freed last    lowest level first,           freed first
          first         in a level freed first first  first

    An ordinary block's level is ``age + worth`` as of when it was freed, or what it was before if that is more. The
    worth of a sequence of n blocks is the square of log2(n), rounded down: 0 for 1 block, 4 for 4, 28 for 40, 100 for
    1,024. So what is short and asked once goes before a chat, however much of it comes. With every ordinary block
    evicted the age goes up by one, though not beyond that block's level: what is freed comes in at higher and higher
    levels, until the longest chat, if nobody returns to it, is lowest and goes.

    This is GreedyDual-Size (Cao and Irani 1997; Cherkasova 1998) but for two things. Its age would jump to the level
    of what is evicted, and a chat that had to give a block would lose the others to the next small requests. And the
    square stands between two worse: with the logarithm itself, small requests displace a chat once they have filled
    the rest of the pool three times; with the length itself, a long document that nobody returns to displaces short
    chats for hundreds of turns.

    Args:
        num_blocks: how many there can be.
        retention_budget: share of them, from 0 to 1, that may be retained while they are free.
        clock: seconds from any fixed moment on; it never goes back.
    """

    __slots__ = ("_age", "_clock", "_heights", "_length", "_levels", "_retained", "_unpublished")

    def __init__(self, num_blocks: int, retention_budget: float, clock: Callable[[], float]) -> None:
        self._unpublished = FreeBlockQueue()
        self._levels: dict[int, FreeBlockQueue] = {}
        self._heights: list[int] = []  # the keys of _levels: a heap
        self._retained = Retained(int(num_blocks * retention_budget))
        self._clock = clock
        self._age = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """Blocks in order of reuse, if no time passes. Do not change anything while iterating."""
        yield from self._unpublished
        for height in sorted(self._levels):
            yield from self._levels[height]
        yield from self._retained

    def level(self, num_blocks: int) -> int:
        """At which level a sequence of ``num_blocks`` blocks, 1 at least, frees them now. Read-only."""
        return self._age + int(math.log2(num_blocks) ** 2)

    def add(self, block: Block) -> None:
        """Mutates: ``block`` is free from now on. One that is not published forgets level and time."""
        self._length += 1
        if block.block_hash is None:
            block.level, block.keep_until = 0, 0.0
            self._unpublished.prepend(block)
        elif block.keep_until and block.keep_until > self._clock():
            self._retained.append(block)
            if self._retained.is_over_budget:
                self._append(self._retained.popleft())
        elif block.level in self._levels:
            self._levels[block.level].append(block)
        else:
            self._append(block)

    def remove(self, block: Block) -> None:
        """Mutates: take ``block`` out from wherever it stands."""
        if block.queue is None:
            raise BlockError(f"{block!r} is not free")
        block.queue.remove(block)
        self._length -= 1

    def take(self, count: int) -> list[Block]:
        """Mutates: take out the first ``count`` blocks; there are so many. They forget level and time."""
        taken = self._unpublished.take(count)
        if len(taken) < count:
            self.expire()
            evicted = self._take_ordinary(count - len(taken))
            evicted += self._retained.take(count - len(taken) - len(evicted))
            for block in evicted:
                block.level, block.keep_until = 0, 0.0
            taken += evicted
        self._length -= count
        return taken

    def retain(self, blocks: Iterable[Block], until: float) -> None:
        """Mutates: ``blocks``, free or held, are kept until then, or for as long as before if that is longer.

        The free ones count as freed now. Give a chain in reverse.
        """
        for block in blocks:
            self._set_time(block, max(block.keep_until, until))

    def release_retained(self, blocks: Iterable[Block]) -> None:
        """Mutates: ``blocks``, free or held, are ordinary from now on. Give a chain in reverse."""
        for block in blocks:
            self._set_time(block, 0.0)

    def expire(self) -> None:
        """Mutates: retained blocks whose time is over become ordinary."""
        for block in self._retained.take_expired(self._clock):
            self._append(block)

    @property
    def num_retained(self) -> int:
        """Free blocks that are retained. Those whose time ended since the last :meth:`expire` count."""
        return len(self._retained)

    def check(self) -> None:
        """Raise BlockError if a queue, a level or a time disagrees with the blocks that stand there. Read-only."""
        free = list(self)
        if len(free) != self._length or len({block.block_id for block in free}) != len(free):
            raise BlockError(f"{self._length} blocks were counted as free, and {len(free)} are linked, or one twice")
        if sorted(self._heights) != sorted(self._levels):
            raise BlockError(f"the levels are {sorted(self._levels)}; known are {sorted(self._heights)}")
        for block in self._unpublished:
            if block.block_hash is not None or block.level or block.keep_until:
                raise BlockError(f"{block!r} stands among the unpublished and is published, or has a level or a time")
        for height, queue in self._levels.items():
            for block in queue:
                if block.level != height:
                    raise BlockError(f"{block!r} of level {block.level} stands in level {height}")
        self._retained.check()

    def _take_ordinary(self, count: int) -> list[Block]:
        """Mutates. The first ``count``, or all if there are fewer. The age goes up."""
        taken: list[Block] = []
        while self._heights and len(taken) < count:
            height = self._heights[0]
            of_level = self._levels[height].take(count - len(taken))
            if len(taken) + len(of_level) < count:
                del self._levels[heappop(self._heights)]
            self._age = max(self._age, min(self._age + len(of_level), height))
            taken += of_level
        return taken

    def _append(self, block: Block) -> None:
        """Mutates. Last in its level."""
        queue = self._levels.get(block.level)
        if queue is None:
            queue = self._levels[block.level] = FreeBlockQueue()
            heappush(self._heights, block.level)
        queue.append(block)

    def _set_time(self, block: Block, keep_until: float) -> None:
        """Mutates. A free block stands, last, where its time says; a held one will."""
        if block.queue is None or block.keep_until == keep_until == 0:
            block.keep_until = keep_until
            return
        self.remove(block)
        block.keep_until = keep_until
        self.add(block)


class Retained(FreeBlockQueue):
    """Free blocks that are kept while others are evicted, in the order they came. Their times do not change here.

    Args:
        budget: how many there should be at most. One more comes in; who put it in takes the first out.
    """

    __slots__ = ("_budget", "_by_time", "_times")

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._budget = budget
        self._by_time: dict[float, dict[Block, None]] = {}
        self._times: list[float] = []  # a heap: the keys of _by_time, and some that were

    @property
    def is_over_budget(self) -> bool:
        return len(self) > self._budget

    def append(self, block: Block) -> None:
        """Mutates: ``block`` came last."""
        super().append(block)
        blocks = self._by_time.get(block.keep_until)
        if blocks is None:
            blocks = self._by_time[block.keep_until] = {}
            heappush(self._times, block.keep_until)
        blocks[block] = None

    def take(self, count: int) -> list[Block]:
        """Mutates: take out the ``count`` blocks that came first, or all if there are fewer."""
        taken = super().take(count)
        for block in taken:
            self._forget_time(block)
        return taken

    def remove(self, block: Block) -> None:
        """Mutates: take out ``block``."""
        super().remove(block)
        self._forget_time(block)

    def take_expired(self, clock: Callable[[], float]) -> list[Block]:
        """Mutates: take out the blocks whose time is over, those of each time in the order they came."""
        expired: list[Block] = []
        if self._times:
            now = clock()
            while self._times and self._times[0] <= now:
                expired += self._by_time.pop(heappop(self._times), ())
            for block in expired:
                super().remove(block)
        return expired

    def check(self) -> None:
        """Raise BlockError if there are too many, or the times are not those of the blocks. Read-only."""
        if self.is_over_budget:
            raise BlockError(f"{len(self)} free blocks are retained; the budget is {self._budget}")
        known = {block: time for time, blocks in self._by_time.items() for block in blocks}
        if known != {block: block.keep_until for block in self} or not self._by_time.keys() <= set(self._times):
            raise BlockError("the times known of retained blocks are not theirs")

    def _forget_time(self, block: Block) -> None:
        """Mutates. What is retained anew again and again leaves no more times behind than there are blocks."""
        blocks = self._by_time[block.keep_until]
        del blocks[block]
        if not blocks:
            del self._by_time[block.keep_until]
            if len(self._times) > 2 * len(self._by_time) + 16:
                self._times = list(self._by_time)
                heapify(self._times)
