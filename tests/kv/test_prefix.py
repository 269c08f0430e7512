"""The index is exact: a hash finds a block, the tokens decide whether it is a hit."""

from __future__ import annotations

import pytest

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.prefix import PrefixIndex

ROOT = BlockHash(bytes(32))


def chain(tokens: list[int], size: int = 2) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    for start in range(0, len(tokens) - size + 1, size):
        hashes.append(hash_block(hashes[-1] if hashes else ROOT, tokens[start : start + size]))
    return hashes


def publish(index: PrefixIndex, block_id: int, parent: BlockHash, tokens: tuple[int, ...], group: int = 0):
    block = Block(block_id)
    return block, index.publish(block, group, hash_block(parent, tokens), parent, tokens)


def test_the_longest_hit_ends_at_the_first_block_that_is_missing():
    index = PrefixIndex(block_size=2, num_groups=1)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    hashes = chain(tokens)
    first, _ = publish(index, 1, ROOT, (1, 2))
    second, _ = publish(index, 2, hashes[0], (3, 4))
    publish(index, 4, hashes[2], (7, 8))
    assert index.longest_hit(ROOT, hashes, tokens, 4) == ([first, second],)
    assert index.longest_hit(ROOT, hashes, tokens, 1) == ([first],)


def test_same_tokens_after_another_prefix_are_a_miss():
    index = PrefixIndex(block_size=2, num_groups=1)
    publish(index, 1, ROOT, (3, 4))
    tokens = [1, 2, 3, 4]
    assert index.longest_hit(ROOT, chain(tokens), tokens, 2) == ([],)


def test_a_colliding_hash_with_other_tokens_is_a_miss_and_is_not_published():
    index = PrefixIndex(block_size=2, num_groups=1)
    same = BlockHash(b"c" * 32)
    first, second = Block(1), Block(2)
    assert index.publish(first, 0, same, ROOT, (1, 2)) is first
    assert index.publish(second, 0, same, ROOT, (3, 4)) is None
    assert second.block_hash is None
    assert index.longest_hit(ROOT, [same], [3, 4], 1) == ([],)
    assert index.longest_hit(ROOT, [same], [1, 2], 1) == ([first],)


def test_a_colliding_hash_with_the_same_tokens_after_another_parent_is_a_miss():
    index = PrefixIndex(block_size=2, num_groups=1)
    same = BlockHash(b"c" * 32)
    first = Block(1)
    index.publish(first, 0, same, ROOT, (1, 1))
    assert index.longest_hit(ROOT, [same, same], [1, 1, 1, 1], 2) == ([first],)
    assert index.publish(Block(2), 0, same, same, (1, 1)) is None


def test_content_published_twice_is_found_in_the_block_that_was_first():
    index = PrefixIndex(block_size=2, num_groups=1)
    first, found = publish(index, 1, ROOT, (1, 2))
    assert found is first
    second, found = publish(index, 2, ROOT, (1, 2))
    assert found is first
    assert second.block_hash is None
    assert len(index) == 1


def test_removing_a_hash_leaves_an_entry_that_points_at_another_block():
    index = PrefixIndex(block_size=2, num_groups=1)
    current, _ = publish(index, 1, ROOT, (1, 2))
    stale = Block(2)
    stale.set_content(hash_block(ROOT, (1, 2)), ROOT, (1, 2), 0)
    index.remove(stale)
    assert stale.block_hash is None
    assert index.longest_hit(ROOT, chain([1, 2]), [1, 2], 1) == ([current],)
    index.check()


def test_removing_an_unpublished_block_raises():
    with pytest.raises(BlockError, match="not published"):
        PrefixIndex(block_size=2, num_groups=1).remove(Block(1))


def test_a_hit_is_what_all_groups_have():
    index = PrefixIndex(block_size=2, num_groups=2)
    tokens = [1, 2, 3, 4]
    hashes = chain(tokens)
    left = [publish(index, 1, ROOT, (1, 2), group=0)[0], publish(index, 2, hashes[0], (3, 4), group=0)[0]]
    assert index.longest_hit(ROOT, hashes, tokens, 2) == ([], [])
    right, _ = publish(index, 3, ROOT, (1, 2), group=1)
    assert index.longest_hit(ROOT, hashes, tokens, 2) == (left[:1], [right])


def test_the_longest_tail_is_one_whose_tokens_begin_what_is_asked():
    index = PrefixIndex(block_size=4, num_groups=1)
    short, _ = publish(index, 1, ROOT, (1,))
    long, _ = publish(index, 2, ROOT, (1, 2, 3))
    publish(index, 3, ROOT, (1, 9))
    assert index.longest_tail(ROOT, [1, 2, 3]) == [long]
    assert index.longest_tail(ROOT, [1, 2]) == [short]
    assert index.longest_tail(ROOT, [2]) == []
    assert index.longest_tail(BlockHash(b"x" * 32), [1, 2, 3]) == []
    index.remove(long)
    assert index.longest_tail(ROOT, [1, 2, 3]) == [short]
    index.check()


def test_a_tail_is_a_hit_only_where_all_groups_have_it():
    index = PrefixIndex(block_size=4, num_groups=2)
    left = [publish(index, 1, ROOT, (1,))[0], publish(index, 2, ROOT, (1, 2))[0]]
    right, _ = publish(index, 3, ROOT, (1,), group=1)
    assert index.longest_tail(ROOT, [1, 2, 3]) == [left[0], right]


def test_a_tail_is_not_a_full_block():
    index = PrefixIndex(block_size=4, num_groups=1)
    publish(index, 1, ROOT, (1, 2, 3, 4))
    assert index.longest_tail(ROOT, [1, 2, 3, 4]) == []


def test_check_finds_an_entry_that_is_not_its_blocks():
    index = PrefixIndex(block_size=2, num_groups=1)
    block, _ = publish(index, 1, ROOT, (1, 2))
    index.check()
    block.token_ids = (1, 3)
    with pytest.raises(BlockError, match="not that of its tokens"):
        index.check()
