"""Who holds which block, which is used next, and what a misuse does."""

from __future__ import annotations

import pytest

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.pool import BlockPool
from octavo.kv.prefix import PrefixIndex
from octavo.kv.residency import Unwatched

ROOT = BlockHash(bytes(32))


class Shelf:
    """A pool with its index, and chains published in it."""

    def __init__(self, num_blocks: int) -> None:
        self.index = PrefixIndex(block_size=2, group_windows=[None])
        self.pool = BlockPool(num_blocks, self.index, Unwatched())

    def take(self, count: int) -> list[Block]:
        blocks = self.pool.allocate(count)
        assert blocks is not None
        return blocks

    def publish_chain(self, blocks: list[Block], token: int) -> None:
        parent = ROOT
        for block in blocks:
            block_hash = hash_block(parent, (token, token))
            self.index.publish(block, 0, block_hash, parent, (token, token))
            parent = block_hash


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def test_the_null_block_is_never_handed_out_and_never_freed():
    shelf = Shelf(4)
    taken = shelf.take(3)
    assert 0 not in ids(taken)
    assert shelf.pool.num_free == 0
    null = shelf.pool._blocks[0]
    for misuse in (shelf.pool.touch, shelf.pool.free):
        with pytest.raises(BlockError):
            misuse([null])


def test_allocation_is_all_or_nothing():
    shelf = Shelf(4)
    assert shelf.pool.allocate(4) is None
    assert shelf.pool.num_free == 3
    shelf.pool.check({})
    assert len(shelf.take(3)) == 3


def test_a_pool_without_a_block_to_hand_out_is_refused():
    with pytest.raises(BlockError, match="got 1 blocks"):
        Shelf(1)


def test_freeing_twice_raises():
    shelf = Shelf(4)
    (block,) = shelf.take(1)
    shelf.pool.free([block])
    with pytest.raises(BlockError, match="freed more often than it was taken"):
        shelf.pool.free([block])
    shelf.pool.check({})


def test_a_block_is_free_when_its_last_holder_frees_it():
    shelf = Shelf(4)
    (block,) = shelf.take(1)
    shelf.pool.touch([block])
    shelf.pool.free([block])
    assert (block.ref_count, shelf.pool.num_free) == (1, 2)
    shelf.pool.free([block])
    assert (block.ref_count, shelf.pool.num_free) == (0, 3)


def test_blocks_without_a_hash_are_reused_before_blocks_with_one():
    shelf = Shelf(6)
    cached, plain = shelf.take(2), shelf.take(2)
    shelf.publish_chain(cached, token=1)
    shelf.pool.free(reversed(cached))
    shelf.pool.free(reversed(plain))
    assert set(ids(shelf.take(3))).isdisjoint(ids(cached))
    assert len(shelf.index) == 2


def test_the_least_recently_used_is_evicted_first_and_of_a_chain_its_tail():
    shelf = Shelf(7)
    old, new = shelf.take(3), shelf.take(3)
    shelf.publish_chain(old, token=1)
    shelf.publish_chain(new, token=2)
    shelf.pool.free(reversed(old))
    shelf.pool.free(reversed(new))
    assert ids(shelf.take(6)) == [*reversed(ids(old)), *reversed(ids(new))]


def test_touching_a_block_makes_it_recently_used():
    shelf = Shelf(5)
    old, new = shelf.take(2), shelf.take(2)
    shelf.publish_chain(old, token=1)
    shelf.publish_chain(new, token=2)
    shelf.pool.free(reversed(old))
    shelf.pool.free(reversed(new))
    shelf.pool.touch(old)
    shelf.pool.free(reversed(old))
    assert ids(shelf.take(4)) == [*reversed(ids(new)), *reversed(ids(old))]


def test_a_block_that_is_reused_forgets_its_content_and_leaves_the_index():
    shelf = Shelf(2)
    (block,) = shelf.take(1)
    shelf.publish_chain([block], token=1)
    shelf.pool.free([block])
    assert shelf.take(1) == [block]
    assert (block.block_hash, block.token_ids, len(shelf.index)) == (None, (), 0)


def test_evicting_free_blocks_leaves_held_ones_published():
    shelf = Shelf(4)
    held, free = shelf.take(1), shelf.take(1)
    shelf.publish_chain(held, token=1)
    shelf.publish_chain(free, token=2)
    shelf.pool.free(free)
    assert shelf.pool.evict_free() == 1
    assert shelf.index.holds(held[0])
    assert not shelf.index.holds(free[0])


def corrupt_ref_count(shelf: Shelf, block: Block) -> None:
    block.ref_count += 1


def corrupt_queue(shelf: Shelf, block: Block) -> None:
    shelf.pool._free.add(block)


def corrupt_hash(shelf: Shelf, block: Block) -> None:
    block.set_content(ROOT, ROOT, (1, 1), 0)


def corrupt_null_block(shelf: Shelf, block: Block) -> None:
    shelf.pool._blocks[0].ref_count = 1


@pytest.mark.parametrize("corrupt", [corrupt_ref_count, corrupt_queue, corrupt_hash, corrupt_null_block])
def test_check_finds_what_is_broken(corrupt):
    shelf = Shelf(4)
    (block,) = shelf.take(1)
    shelf.pool.check({block.block_id: 1})
    corrupt(shelf, block)
    with pytest.raises(BlockError):
        shelf.pool.check({block.block_id: 1})
