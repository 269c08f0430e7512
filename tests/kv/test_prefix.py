"""The index is exact: a hash finds a block, the tokens decide whether it is a hit, and how far it goes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.prefix import Found, PrefixIndex

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
    assert index.longest_hit(ROOT, chain(tokens), tokens, 10) == (10, (full, windowed[4:]), [])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 8) == (0, ([], []), [])


def test_where_a_window_misses_a_block_a_shorter_prefix_is_the_hit():
    index = PrefixIndex(block_size=2, group_windows=[5, None, 3])
    tokens = list(range(12))
    wide, full, narrow = (publish_chain(index, tokens, group) for group in range(3))
    index.remove(narrow[5])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 12) == (10, (wide[3:5], full[:5], narrow[4:5]), [])
    index.remove(wide[3])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 12) == (6, (wide[1:3], full[:3], narrow[2:3]), [])
    index.remove(wide[0])
    index.remove(wide[2])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 12).num_tokens == 0


def test_a_window_alone_needs_no_beginning():
    index = PrefixIndex(block_size=2, group_windows=[4])
    tokens = list(range(20))
    blocks = publish_chain(index, tokens, 0)
    for block in blocks[:7]:
        index.remove(block)
    assert index.longest_hit(ROOT, chain(tokens), tokens, 20) == (20, (blocks[8:],), [])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 18) == (18, (blocks[7:9],), [])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 17) == (17, (blocks[7:8],), [blocks[8]])
    assert index.longest_hit(ROOT, chain(tokens), tokens, 16).num_tokens == 0


def test_a_tail_needs_less_of_a_window_than_the_blocks_before_it():
    index = PrefixIndex(block_size=2, group_windows=[4])
    tokens = list(range(9))
    hashes = chain(tokens)
    blocks = publish_chain(index, tokens, 0)
    tail, _ = publish(index, 99, hashes[3], (8,))
    index.remove(blocks[2])
    assert index.longest_hit(ROOT, hashes, tokens, 9) == (9, (blocks[3:],), [tail])
    assert index.longest_hit(ROOT, hashes, tokens, 8) == (4, (blocks[:2],), [])


def test_a_tail_may_be_all_that_a_window_needs():
    index = PrefixIndex(block_size=4, group_windows=[3])
    tokens = list(range(10))
    tail, _ = publish(index, 1, chain(tokens, 4)[1], (8, 9))
    assert index.longest_hit(ROOT, chain(tokens, 4), tokens, 10) == (10, ([],), [tail])


Content = tuple[int, int, int, int]
"""(group, block, tokens in it, how many of them, from the first, are those asked for)"""


@st.composite
def _published(draw: st.DrawFn) -> tuple[int, list[int | None], set[Content]]:
    """A block size, windows, and what is published."""
    size = draw(st.integers(2, 4))
    windows = draw(st.lists(st.none() | st.integers(1, 10), min_size=1, max_size=3))
    groups, blocks = range(len(windows)), 24 // size
    whole = {(group, i, size, size) for group in groups for i in range(blocks)}
    gone = draw(st.sets(st.sampled_from(sorted(whole)), max_size=8))
    counts = st.integers(1, size)
    begun = draw(st.sets(st.tuples(st.integers(0, blocks - 1), counts, st.integers(0, size)), max_size=8))
    partial = {(group, i, count, min(count, right)) for i, count, right in begun for group in groups}
    lost = draw(st.sets(st.sampled_from(sorted(partial)), max_size=3)) if partial else set()
    return size, windows, (whole - gone) | (partial - lost)


@settings(max_examples=400)
@given(published=_published(), max_tokens=st.integers(0, 24))
def test_no_longer_prefix_has_all_that_the_next_query_sees(published, max_tokens):
    size, windows, contents = published
    index, tokens, groups = PrefixIndex(block_size=size, group_windows=windows), list(range(24)), range(len(windows))
    hashes = chain(tokens, size)
    for block_id, (group, i, count, right) in enumerate(sorted(contents)):
        part = tuple(tokens[i * size : i * size + right]) + (99,) * (count - right)
        publish(index, block_id, hashes[i - 1] if i else ROOT, part, group)
    index.check()
    known = {(group, i, n) for group, i, _, right in contents for n in range(right + 1)}

    def needed(end: int, group: int) -> list[tuple[int, int, int]]:
        window = windows[group]
        first = 0 if window is None else max(0, end - window + 1) // size
        return [(group, i, min(size, end - i * size)) for i in range(first, -(-end // size))]

    end = max(end for end in range(max_tokens + 1) if all(known.issuperset(needed(end, group)) for group in groups))
    found = index.longest_hit(ROOT, hashes, tokens, max_tokens)
    assert found.num_tokens == end
    for group, blocks in enumerate(found.blocks):
        full = [i for _, i, count in needed(end, group) if count == size]
        assert [(block.group, block.block_hash) for block in blocks] == [(group, hashes[i]) for i in full]
    asked = tuple(tokens[end // size * size : end])
    assert [block.group for block in found.tail] == (list(groups) if asked else [])
    assert all(block.token_ids[: len(asked)] == asked for block in found.tail)


def test_a_lookup_visits_each_block_once_however_many_windows_have_gaps(monkeypatch):
    index = PrefixIndex(block_size=2, group_windows=[9])
    tokens = list(range(400))
    for block in publish_chain(index, tokens, 0)[::3]:
        index.remove(block)
    asked = []
    row = PrefixIndex._row
    monkeypatch.setattr(PrefixIndex, "_row", lambda *args: asked.append(args[2]) or row(*args))
    assert index.longest_hit(ROOT, chain(tokens), tokens, 400).num_tokens == 0
    assert len(asked) == len(set(asked)) == 200


def start(index: PrefixIndex, tokens: list[int], parent: BlockHash = ROOT) -> tuple[int, list[Block]]:
    return index.longest_start(parent, tokens)


def test_a_hit_goes_on_inside_a_block_up_to_the_first_token_that_differs():
    index = PrefixIndex(block_size=4, group_windows=[None])
    tokens = list(range(8))
    first, _ = publish(index, 1, ROOT, (0, 1, 2, 3))
    second, _ = publish(index, 2, chain(tokens, 4)[0], (4, 5, 6, 7))
    for asked in ([0, 1, 2, 3, 4, 5, 9, 9], [0, 1, 2, 3, 4, 5, 9], [0, 1, 2, 3, 4, 5]):
        assert index.longest_hit(ROOT, chain(asked, 4), asked, len(asked)) == Found(6, ([first],), [second])
    assert index.longest_hit(ROOT, chain(tokens, 4), tokens, 7) == Found(7, ([first],), [second])
    assert index.longest_hit(ROOT, chain([0, 9, 9, 9], 4), [0, 9, 9, 9], 4) == Found(1, ([],), [first])


def test_of_all_that_follows_a_prefix_the_block_that_begins_most_alike_is_found():
    index = PrefixIndex(block_size=4, group_windows=[None])
    short, _ = publish(index, 1, ROOT, (1,))
    long, _ = publish(index, 2, ROOT, (1, 2, 3))
    other, _ = publish(index, 3, ROOT, (1, 9, 9, 9))
    assert start(index, [1, 2, 3, 4]) == (3, [long])
    assert start(index, [1, 2]) == (2, [long])
    assert start(index, [1, 9, 9]) == (3, [other])
    assert start(index, [1, 5])[0] == 1
    assert start(index, [2]) == (0, [])
    assert start(index, [1, 2, 3], BlockHash(b"x" * 32)) == (0, [])
    index.remove(long)
    assert start(index, [1, 2, 3])[0] == 1
    index.remove(other)
    assert start(index, [1, 2, 3]) == (1, [short])
    index.check()


def test_what_all_groups_share_of_a_block_is_the_hit():
    index = PrefixIndex(block_size=4, group_windows=[None, None])
    left = publish(index, 1, ROOT, (1, 2, 3))[0]
    assert start(index, [1, 2, 3]) == (0, [])
    right, _ = publish(index, 3, ROOT, (1, 2, 9, 9), group=1)
    assert start(index, [1, 2, 3]) == (2, [left, right])


def test_a_block_published_again_is_found_by_its_new_tokens():
    index = PrefixIndex(block_size=4, group_windows=[None])
    block, _ = publish(index, 1, ROOT, (1, 2))
    whole = (1, 2, 3, 4)
    assert index.publish(block, 0, hash_block(ROOT, whole), ROOT, whole) is block
    index.check()
    assert (len(index), start(index, list(whole))) == (1, (4, [block]))


def test_a_block_published_again_with_what_another_has_is_not_published():
    index = PrefixIndex(block_size=4, group_windows=[None])
    first, _ = publish(index, 1, ROOT, (1, 2, 3, 4))
    second, _ = publish(index, 2, ROOT, (1, 2))
    assert index.publish(second, 0, hash_block(ROOT, first.token_ids), ROOT, first.token_ids) is first
    assert second.block_hash is None
    index.check()


def test_what_begins_another_block_is_covered_by_it():
    index = PrefixIndex(block_size=4, group_windows=[None])
    blocks = [publish(index, i, ROOT, (1, 2, 3, 4)[:i])[0] for i in range(1, 5)]
    nine, _ = publish(index, 5, ROOT, (1, 2, 9))
    zero, _ = publish(index, 6, ROOT, (1, 2, 3, 0))
    assert set(index.covered_by(blocks[3])) == set(blocks[:3])
    assert index.covering(Block(7), 0, ROOT, (1, 2, 9)) is nine
    assert index.covering(blocks[2], 0, ROOT, (1, 2, 3)) is zero
    assert index.covering(blocks[3], 0, ROOT, (1, 2, 3, 4)) is None
    assert index.covering(Block(7), 0, ROOT, (1, 9)) is None


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple), unique=True),
    st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple),
)
def test_what_is_found_among_many_is_what_a_look_at_each_finds(contents, asked):
    index = PrefixIndex(block_size=5, group_windows=[None])
    blocks = [publish(index, i, ROOT, content)[0] for i, content in enumerate(contents)]
    alike = [sum(content[:n] == asked[:n] for n in range(1, 1 + min(len(content), len(asked)))) for content in contents]
    length, found = start(index, list(asked))
    assert length == max(alike, default=0)
    assert all(block.token_ids[:length] == asked[:length] for block in found)
    for block in blocks:
        content = block.token_ids
        begin = {
            other.block_id
            for other in blocks
            if other is not block and other.token_ids == content[: len(other.token_ids)]
        }
        assert {other.block_id for other in index.covered_by(block)} == begin
        covered = any(block in index.covered_by(other) for other in blocks)
        longer = index.covering(block, 0, ROOT, content)
        assert (longer is not None) == covered
        assert longer is None or (longer is not block and longer.token_ids[: len(content)] == content)
    for block in blocks[::2]:
        index.remove(block)
    index.check()


def test_a_lookup_among_thousands_that_begin_alike_looks_at_few():
    """A system prompt, then thousands of questions that all begin with the words of a chat template."""
    index = PrefixIndex(block_size=16, group_windows=[None])
    for i in range(3000):
        publish(index, i, ROOT, (7, 8, 9, *divmod(i * 7919 % 3000, 60), *range(11)))
    seen = []

    class Counting(tuple):
        def __gt__(self, other):
            seen.append(other)
            return super().__gt__(other)

    assert index._children[0].most_alike(ROOT, Counting((7, 8, 9, 30, 30, 0, 1, 99)))[0] == 7
    assert 0 < len(seen) <= 12


def test_check_finds_an_entry_that_is_not_its_blocks():
    index = PrefixIndex(block_size=2, group_windows=[None])
    block, _ = publish(index, 1, ROOT, (1, 2))
    index.check()
    block.token_ids = (1, 3)
    with pytest.raises(BlockError, match="not that of its tokens"):
        index.check()
