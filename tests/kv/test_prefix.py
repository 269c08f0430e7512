"""The index is exact: a hash finds a block, the tokens decide whether it is a hit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    index = PrefixIndex(block_size=2, group_windows=[None])
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    hashes = chain(tokens)
    first, _ = publish(index, 1, ROOT, (1, 2))
    second, _ = publish(index, 2, hashes[0], (3, 4))
    publish(index, 4, hashes[2], (7, 8))
    assert index.longest_hit(ROOT, hashes, tokens, 8).blocks == ([first, second],)
    assert index.longest_hit(ROOT, hashes, tokens, 2).blocks == ([first],)


def test_same_tokens_after_another_prefix_are_a_miss():
    index = PrefixIndex(block_size=2, group_windows=[None])
    publish(index, 1, ROOT, (3, 4))
    tokens = [1, 2, 3, 4]
    assert index.longest_hit(ROOT, chain(tokens), tokens, 4).blocks == ([],)


def test_a_colliding_hash_with_other_tokens_is_a_miss_and_is_not_published():
    index = PrefixIndex(block_size=2, group_windows=[None])
    same = BlockHash(b"c" * 32)
    first, second = Block(1), Block(2)
    assert index.publish(first, 0, same, ROOT, (1, 2)) is first
    assert index.publish(second, 0, same, ROOT, (3, 4)) is None
    assert second.block_hash is None
    assert index.longest_hit(ROOT, [same], [3, 4], 2).blocks == ([],)
    assert index.longest_hit(ROOT, [same], [1, 2], 2).blocks == ([first],)


def test_a_colliding_hash_with_the_same_tokens_after_another_parent_is_a_miss():
    index = PrefixIndex(block_size=2, group_windows=[None])
    same = BlockHash(b"c" * 32)
    first = Block(1)
    index.publish(first, 0, same, ROOT, (1, 1))
    assert index.longest_hit(ROOT, [same, same], [1, 1, 1, 1], 4).blocks == ([first],)
    assert index.publish(Block(2), 0, same, same, (1, 1)) is None


def test_content_published_twice_is_found_in_the_block_that_was_first():
    index = PrefixIndex(block_size=2, group_windows=[None])
    first, found = publish(index, 1, ROOT, (1, 2))
    assert found is first
    second, found = publish(index, 2, ROOT, (1, 2))
    assert found is first
    assert second.block_hash is None
    assert len(index) == 1


def test_removing_a_hash_leaves_an_entry_that_points_at_another_block():
    index = PrefixIndex(block_size=2, group_windows=[None])
    current, _ = publish(index, 1, ROOT, (1, 2))
    stale = Block(2)
    stale.set_content(hash_block(ROOT, (1, 2)), ROOT, (1, 2), 0)
    index.remove(stale)
    assert stale.block_hash is None
    assert index.longest_hit(ROOT, chain([1, 2]), [1, 2], 2).blocks == ([current],)
    index.check()


def test_removing_an_unpublished_block_raises():
    with pytest.raises(BlockError, match="not published"):
        PrefixIndex(block_size=2, group_windows=[None]).remove(Block(1))


def test_a_hit_is_what_all_groups_have():
    index = PrefixIndex(block_size=2, group_windows=[None, None])
    tokens = [1, 2, 3, 4]
    hashes = chain(tokens)
    left = [publish(index, 1, ROOT, (1, 2), group=0)[0], publish(index, 2, hashes[0], (3, 4), group=0)[0]]
    assert index.longest_hit(ROOT, hashes, tokens, 4).blocks == ([], [])
    right, _ = publish(index, 3, ROOT, (1, 2), group=1)
    assert index.longest_hit(ROOT, hashes, tokens, 4).blocks == (left[:1], [right])


def publish_chain(index: PrefixIndex, tokens: list[int], group: int) -> list[Block]:
    """Every full block of ``tokens``, of size 2."""
    hashes = chain(tokens)
    return [
        publish(index, 10 * group + i, hashes[i - 1] if i else ROOT, tuple(tokens[2 * i : 2 * i + 2]), group)[0]
        for i in range(len(hashes))
    ]


def test_a_group_with_a_window_needs_only_the_last_blocks():
    index = PrefixIndex(block_size=2, group_windows=[None, 3])
    tokens = list(range(10))
    full, windowed = publish_chain(index, tokens, 0), publish_chain(index, tokens, 1)
    for block in windowed[:4]:
        index.remove(block)
    assert index.longest_hit(ROOT, chain(tokens), tokens, 10) == (5, (full, windowed[4:]), [])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 8) == (0, ([], []), [])


def test_where_a_window_misses_a_block_a_shorter_prefix_is_the_hit():
    index = PrefixIndex(block_size=2, group_windows=[5, None, 3])
    tokens = list(range(12))
    wide, full, narrow = (publish_chain(index, tokens, group) for group in range(3))
    index.remove(narrow[5])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 12) == (5, (wide[3:5], full[:5], narrow[4:5]), [])
    index.remove(wide[3])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 12) == (3, (wide[1:3], full[:3], narrow[2:3]), [])
    index.remove(wide[0])
    index.remove(wide[2])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 12).num_blocks == 0


def test_a_window_alone_needs_no_beginning():
    index = PrefixIndex(block_size=2, group_windows=[4])
    tokens = list(range(20))
    blocks = publish_chain(index, tokens, 0)
    for block in blocks[:7]:
        index.remove(block)
    assert index.longest_hit(ROOT, chain(tokens), tokens, 20) == (10, (blocks[8:],), [])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 18) == (9, (blocks[7:9],), [])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 16).num_blocks == 0


def test_a_tail_needs_less_of_a_window_than_the_blocks_before_it():
    index = PrefixIndex(block_size=2, group_windows=[4])
    tokens = list(range(9))
    hashes = chain(tokens)
    blocks = publish_chain(index, tokens, 0)
    tail, _ = publish(index, 99, hashes[3], (8,))
    index.remove(blocks[2])
    assert index.longest_hit(ROOT, hashes, tokens, 9) == (4, (blocks[3:],), [tail])
    assert index.longest_hit(ROOT, hashes, tokens, 8) == (2, (blocks[:2],), [])


def test_a_tail_may_be_all_that_a_window_needs():
    index = PrefixIndex(block_size=4, group_windows=[3])
    tokens = list(range(10))
    tail, _ = publish(index, 1, chain(tokens, 4)[1], (8, 9))
    assert index.longest_hit(ROOT, chain(tokens, 4), tokens, 10) == (2, ([],), [tail])


@st.composite
def _published(draw: st.DrawFn) -> tuple[int, list[int | None], set[tuple[int, int, int]]]:
    """A block size, windows, and what is published: (group, block, tokens in it), fewer than all being a tail."""
    size = draw(st.integers(2, 4))
    windows = draw(st.lists(st.none() | st.integers(1, 10), min_size=1, max_size=3))
    blocks = [(group, i, size) for group in range(len(windows)) for i in range(24 // size)]
    gone = draw(st.sets(st.sampled_from(blocks), max_size=8))
    ends = st.tuples(st.integers(0, 24 // size - 1), st.integers(1, size - 1))
    tails = {(group, *end) for end in draw(st.sets(ends, max_size=6)) for group in range(len(windows))}
    lost = draw(st.sets(st.sampled_from(sorted(tails)), max_size=2)) if tails else set()
    return size, windows, (set(blocks) - gone) | (tails - lost)


@settings(max_examples=400)
@given(published=_published(), max_tokens=st.integers(0, 24))
def test_no_longer_prefix_has_all_that_the_next_query_sees(published, max_tokens):
    size, windows, content = published
    index, tokens, groups = PrefixIndex(block_size=size, group_windows=windows), list(range(24)), range(len(windows))
    hashes = chain(tokens, size)
    held = {}
    for block_id, (group, i, count) in enumerate(sorted(content)):
        part, parent = tuple(tokens[i * size : i * size + count]), hashes[i - 1] if i else ROOT
        held[group, i, count], _ = publish(index, block_id, parent, part, group)

    def needed(end: int, group: int) -> list[tuple[int, int, int]]:
        window = windows[group]
        first = 0 if window is None else max(0, end - window + 1) // size
        return [(group, i, min(size, end - i * size)) for i in range(first, -(-end // size))]

    end = max(end for end in range(max_tokens + 1) if all(content.issuperset(needed(end, group)) for group in groups))
    full = [[held[key] for key in needed(end, group) if key[2] == size] for group in groups]
    tail = [held[key] for group in groups for key in needed(end, group) if key[2] < size]
    assert index.longest_hit(ROOT, hashes, tokens, max_tokens) == (end // size, tuple(full), tail)


def test_a_lookup_visits_each_block_once_however_many_windows_have_gaps(monkeypatch):
    index = PrefixIndex(block_size=2, group_windows=[9])
    tokens = list(range(400))
    for block in publish_chain(index, tokens, 0)[::3]:
        index.remove(block)
    asked = []
    row = PrefixIndex._row
    monkeypatch.setattr(PrefixIndex, "_row", lambda *args: asked.append(args[2]) or row(*args))
    assert index.longest_hit(ROOT, chain(tokens), tokens, 400).num_blocks == 0
    assert len(asked) == len(set(asked)) == 200


def test_the_longest_tail_is_one_whose_tokens_begin_what_is_asked():
    index = PrefixIndex(block_size=4, group_windows=[None])
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
    index = PrefixIndex(block_size=4, group_windows=[None, None])
    left = [publish(index, 1, ROOT, (1,))[0], publish(index, 2, ROOT, (1, 2))[0]]
    right, _ = publish(index, 3, ROOT, (1,), group=1)
    assert index.longest_tail(ROOT, [1, 2, 3]) == [left[0], right]


def test_a_tail_is_not_a_full_block():
    index = PrefixIndex(block_size=4, group_windows=[None])
    publish(index, 1, ROOT, (1, 2, 3, 4))
    assert index.longest_tail(ROOT, [1, 2, 3, 4]) == []


def test_check_finds_an_entry_that_is_not_its_blocks():
    index = PrefixIndex(block_size=2, group_windows=[None])
    block, _ = publish(index, 1, ROOT, (1, 2))
    index.check()
    block.token_ids = (1, 3)
    with pytest.raises(BlockError, match="not that of its tokens"):
        index.check()
