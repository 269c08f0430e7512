"""Allocator: takes blocks for a sequence, and says what is to be copied into them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from octavo.kv.block import NULL_BLOCK_ID, Block
from octavo.kv.hit import PrefixHit
from octavo.kv.pool import BlockPool
from octavo.kv.prefix import PrefixIndex
from octavo.kv.sequence import SequenceBlocks


@dataclass(frozen=True, slots=True)
class Allocation:
    """Block copies ``(source, target)`` to execute in order, before anything is computed; source 0 zeroes."""

    copies: list[tuple[int, int]]


class Allocator:
    """Fills block tables out of the pool. What does not fit changes nothing."""

    __slots__ = ("_index", "_pool")

    def __init__(self, index: PrefixIndex, pool: BlockPool) -> None:
        self._index = index
        self._pool = pool

    def hold_hit(self, seq: SequenceBlocks, hit: PrefixHit, missing: int) -> Allocation | None:
        """Mutates: ``seq``, which holds nothing, holds its hit and ``missing`` more blocks per group, 1 at least."""
        null_block, groups = self._pool.null_block, len(hit.blocks)
        shared = [block for block in chain.from_iterable(hit.blocks) if block is not null_block]
        # A hit block that nobody holds is taken out of the free ones too.
        free = self._pool.num_free - sum(block.ref_count == 0 for block in shared)
        if missing * groups > free:
            return None
        # When there is no room for free tails beside their copies, they themselves become the sequence's blocks.
        # Without this a request that needs the whole pool could wait for ever on an idle engine.
        adopted = [block for block in hit.tail if block.ref_count == 0]
        if missing * groups + len(adopted) <= free:
            adopted = []
        copied = [block for block in hit.tail if block not in adopted]
        # Touch before allocating, or the hit would be evicted to make room for the rest.
        self._pool.touch(chain(shared, adopted, copied))
        copies: list[tuple[int, int]] = []
        for group, blocks in enumerate(hit.blocks):
            seq.append_blocks(group, blocks)
            tail = hit.tail[group] if hit.tail else null_block
            if tail in adopted:
                self._index.remove(tail)
                self._pool.release_retained([tail])
                seq.append_blocks(group, [tail])
            fresh = self._take(missing - (tail in adopted))
            seq.append_blocks(group, fresh)
            sources = [NULL_BLOCK_ID] * len(fresh)
            if tail in copied:
                sources[0] = tail.block_id
            copies += [(source, block.block_id) for source, block in zip(sources, fresh, strict=True)]
        self._pool.free(copied, length=len(hit.blocks[0]) + 1)
        return Allocation(copies)

    def grow(self, seq: SequenceBlocks, missing: int, index: int, shared: list[int]) -> Allocation | None:
        """Mutates: ``seq`` holds ``missing`` more blocks per group, and own copies of its block ``index`` in the groups
        ``shared``, where others hold it too.
        """
        if missing * len(seq.blocks) + len(shared) > self._pool.num_free:
            return None
        copies: list[tuple[int, int]] = []
        for group in shared:
            source, (target,) = seq.blocks[group][index], self._take(1)
            copies.append((source.block_id, target.block_id))
            seq.replace_block(group, index, target)
            self._pool.free([source])
        for group in range(len(seq.blocks)):
            fresh = self._take(missing)
            copies += [(NULL_BLOCK_ID, block.block_id) for block in fresh]
            seq.append_blocks(group, fresh)
        return Allocation(copies)

    def _take(self, count: int) -> list[Block]:
        """Mutates. Blocks that are known to be free."""
        taken = self._pool.allocate(count)
        assert taken is not None, f"{count} blocks were counted as free and are not"
        return taken
