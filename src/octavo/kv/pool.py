"""BlockPool: every block there is, who holds it, and which free one is used next."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.kv.block import NULL_BLOCK_ID, Block, BlockError, FreeBlockQueue
from octavo.kv.prefix import PrefixIndex
from octavo.kv.residency import Watcher


class BlockPool:
    """``num_blocks`` blocks, the null block among them. A block is free or has ``ref_count`` holders.

    Free blocks without a hash stand in front of those with one, which stand in the order they were freed: a
    block is evicted only when nothing else is left, least recently used first. Who frees a chain frees it in
    reverse, so that it loses its tail first.
    """

    __slots__ = ("_blocks", "_free", "_index", "_watcher", "num_evictable")

    def __init__(self, num_blocks: int, index: PrefixIndex, watcher: Watcher) -> None:
        if num_blocks < 2:
            raise BlockError(f"a pool needs the null block and one other at least; got {num_blocks} blocks")
        self._index = index
        self._watcher = watcher
        self._blocks = tuple(Block(block_id) for block_id in range(num_blocks))
        self._free = FreeBlockQueue()
        self.num_evictable = 0
        """Free blocks that a hit can find."""
        for block in self._blocks[NULL_BLOCK_ID + 1 :]:
            self._free.append(block)

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

    def allocate(self, count: int) -> list[Block] | None:
        """Mutates: take ``count`` free blocks, evicting what they held; all or, if too few are free, None."""
        if count > len(self._free):
            return None
        taken = []
        for _ in range(count):
            block = self._free.popleft()
            if block.block_hash is not None:
                self.num_evictable -= 1
                self._index.remove(block)
                self._watcher.evicted(block.block_id)
            block.ref_count = 1
            taken.append(block)
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

    def free(self, blocks: Iterable[Block]) -> None:
        """Mutates: one holder fewer for each block, in the order given. Give a chain in reverse.

        Raises:
            BlockError: a block has no holder. The blocks before it have been freed.
        """
        for block in blocks:
            if block.ref_count <= 0:
                raise BlockError(f"{block!r} was freed more often than it was taken")
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.block_hash is None:
                    self._free.prepend(block)
                else:
                    self._free.append(block)
                    self.num_evictable += 1
                    self._watcher.dropped(block.block_id)

    def evict_free(self) -> int:
        """Mutates: every free block forgets its content. Returns how many had one."""
        published = [block for block in self._free if block.block_hash is not None]
        for block in published:
            self._index.remove(block)
        self.num_evictable = 0
        return len(published)

    def check(self, holders: dict[int, int]) -> None:
        """Raise BlockError unless every block is held as ``holders`` (block id -> tables it stands in) says,
        and free exactly if nobody holds it. Read-only.
        """
        free = list(self._free)
        if len(free) != len(self._free) or len({block.block_id for block in free}) != len(free):
            raise BlockError(f"the free queue says {len(self._free)} blocks and links {len(free)}, or one twice")
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
