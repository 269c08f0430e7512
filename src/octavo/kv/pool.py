"""BlockPool: every block there is, who holds it, and which free one is used next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from octavo.kv.block import NULL_BLOCK_ID, Block, BlockError
from octavo.kv.prefix import PrefixIndex
from octavo.kv.residency import Watcher
from octavo.kv.retention import FreeBlocks


class BlockPool:
    """``num_blocks`` blocks, the null block among them. A block is free or has ``ref_count`` holders.

    A published block is evicted only when nothing else is left, in the order that
    :class:`~octavo.kv.retention.FreeBlocks` gives. Who frees a chain frees it in reverse, so that it loses its tail
    first.
    """

    __slots__ = ("_blocks", "_free", "_index", "_watcher", "num_evictable")

    def __init__(
        self,
        num_blocks: int,
        index: PrefixIndex,
        watcher: Watcher,
        *,
        retention_budget: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if num_blocks < 2:
            raise BlockError(f"a pool needs the null block and one other at least; got {num_blocks} blocks")
        self._index = index
        self._watcher = watcher
        self._blocks = tuple(Block(block_id) for block_id in range(num_blocks))
        self._free = FreeBlocks(num_blocks - 1, retention_budget, clock)
        self.num_evictable = 0
        """Free blocks that a hit can find."""
        for block in reversed(self._blocks[NULL_BLOCK_ID + 1 :]):
            self._free.add(block)

    @property
    def null_block(self) -> Block:
        """What stands in a block table where a block is not needed. Never touched, never freed."""
        return self._blocks[NULL_BLOCK_ID]

    @property
    def num_blocks(self) -> int:
        """All blocks, the null block included."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that :meth:`allocate` can hand out, published ones included."""
        return len(self._free)

    @property
    def num_retained(self) -> int:
        """Free blocks that are retained now. Mutates: those whose time is over become ordinary."""
        self._free.expire()
        return self._free.num_retained

    def allocate(self, count: int) -> list[Block] | None:
        """Mutates: take ``count`` free blocks, evicting what they held; all or, if too few are free, None."""
        if count > len(self._free):
            return None
        taken = self._free.take(count)
        for block in taken:
            if block.block_hash is not None:
                self.num_evictable -= 1
                self._index.remove(block)
                self._watcher.evicted(block.block_id)
            block.ref_count = 1
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """Mutates: one more holder for each block; a free one leaves the free queue and keeps its content."""
        for block in blocks:
            if block.ref_count == 0:
                self._free.remove(block)
                if block.block_hash is not None:
                    self.num_evictable -= 1
                    self._watcher.taken(block.block_id)
            block.ref_count += 1

    def free(self, blocks: Iterable[Block], *, length: int = 1) -> None:
        """Mutates: one holder fewer for each block, in the order given. Give a chain in reverse.

        ``length``: blocks of the sequence that held them. What a longer one held is kept for longer.

        Raises:
            BlockError: a block has no holder. The blocks before it have been freed.
        """
        level = self._free.level(length)
        for block in blocks:
            if block.ref_count <= 0:
                raise BlockError(f"{block!r} was freed more often than it was taken")
            block.ref_count -= 1
            if block.level < level:
                block.level = level
            if block.ref_count == 0:
                self._free.add(block)
                if block.block_hash is not None:
                    self.num_evictable += 1
                    self._watcher.dropped(block.block_id)

    def retain(self, blocks: Iterable[Block], until: float) -> None:
        """Mutates: ``blocks`` are evicted after all others until then, in seconds of the clock; never shortened.

        Held ones will be once they are free. A block that is evicted, or freed unpublished, forgets it. Give a chain
        in reverse.
        """
        self._free.retain(blocks, until)

    def release_retained(self, blocks: Iterable[Block]) -> None:
        """Mutates: ``blocks`` are evicted like any other from now on. Give a chain in reverse."""
        self._free.release_retained(blocks)

    def supersede(self, block: Block, longer: Block) -> None:
        """Mutates: ``block``, free and published, is no longer found: ``longer``, published and held, has its tokens
        and more. That one is kept for as long as ``block`` would have been.
        """
        longer.level = max(longer.level, block.level)
        self._free.retain([longer], block.keep_until)
        self._free.remove(block)
        self._index.remove(block)
        self._free.add(block)
        self.num_evictable -= 1

    def evict_free(self) -> int:
        """Mutates: every free block forgets its content. Returns how many had one."""
        published = [block for block in self._free if block.block_hash is not None]
        for block in reversed(published):
            self._free.remove(block)
            self._index.remove(block)
            self._free.add(block)
        self.num_evictable = 0
        return len(published)

    def check(self, holders: dict[int, int]) -> None:
        """Raise BlockError unless every block is held as ``holders`` (block id -> tables it stands in) says,
        and free exactly if nobody holds it. Read-only.
        """
        self._free.check()
        free = list(self._free)
        evictable = sum(block.block_hash is not None for block in free)
        if evictable != self.num_evictable:
            raise BlockError(f"{evictable} free blocks are published; {self.num_evictable} were counted")
        free_ids = {block.block_id for block in free}
        null = self._blocks[NULL_BLOCK_ID]
        if null.ref_count or null.block_hash is not None or NULL_BLOCK_ID in free_ids or NULL_BLOCK_ID in holders:
            raise BlockError(f"the null block was touched: {null!r}")
        for block in self._blocks[NULL_BLOCK_ID + 1 :]:
            if block.ref_count != holders.get(block.block_id, 0):
                raise BlockError(f"{block!r} stands in {holders.get(block.block_id, 0)} block tables")
            if (block.ref_count == 0) != (block.block_id in free_ids):
                raise BlockError(f"{block!r} is held and free, or neither")
            if block.block_hash is not None and not self._index.holds(block):
                raise BlockError(f"{block!r} has a hash but the index does not lead to it")
