"""Groups of layers with a window: what they hold, give back and need for a hit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.block import BlockError
from octavo.kv.hashing import BlockHash
from octavo.kv.manager import KVCacheManager
from octavo.kv.sequence import SequenceBlocks
from octavo.kv.windows import blocks_held

ROOT = BlockHash(bytes(32))
SIZE = 4


def make_manager(*windows: int | None, num_blocks: int = 65, block_size: int = SIZE) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=block_size, group_windows=windows)


def start(manager: KVCacheManager, tokens: list[int], *, room: int | None = None, **options) -> SequenceBlocks:
    """Admit a sequence with room for all its tokens, or for ``room``."""
    seq = manager.new_sequence(tokens, ROOT, **options)
    assert manager.admit(seq, manager.find_hit(seq), len(tokens) if room is None else room) is not None
    manager.check()
    return seq


def compute(manager: KVCacheManager, seq: SequenceBlocks, until: int, step: int = 1) -> None:
    """Compute what is missing of the first ``until`` tokens, ``step`` tokens at a time."""
    while seq.num_computed < until:
        end = min(seq.num_computed + step, until)
        assert manager.extend(seq, end) is not None
        manager.publish(seq, end)
        manager.check()


def run(manager: KVCacheManager, tokens: list[int], *, step: int = 1, **options) -> SequenceBlocks:
    seq = manager.new_sequence(list(tokens), ROOT, **options)
    hit = manager.find_hit(seq)
    assert manager.admit(seq, hit, hit.num_tokens + 1) is not None
    compute(manager, seq, len(tokens), step)
    return seq


def hit_tokens(manager: KVCacheManager, tokens: list[int]) -> int:
    return manager.find_hit(manager.new_sequence(tokens, ROOT)).num_tokens


def held(seq: SequenceBlocks, group: int = 0) -> list[int]:
    return [block_id for block_id in seq.block_ids[group] if block_id]


def evict(manager: KVCacheManager, count: int) -> None:
    """Reuse the ``count`` blocks that are first in order of reuse."""
    other = manager.new_sequence([9], ROOT, read_cache=False, write_cache=False)
    room = count // manager.num_groups * manager.block_size
    assert manager.admit(other, manager.find_hit(other), room) is not None
    manager.release(other, publish_tail=False)


def test_a_long_sequence_holds_the_blocks_of_its_window_alone():
    manager = make_manager(10, None, num_blocks=200)
    tokens = list(range(400))
    seq = start(manager, tokens, room=1)
    most = blocks_held(400, 10, block_size=SIZE, max_step_tokens=1)
    for length in range(1, 401):
        compute(manager, seq, length)
        assert len(held(seq, 0)) <= most == 4
        assert len(held(seq, 1)) == -(-length // SIZE)
    assert seq.block_ids[0][:97] == [0] * 97  # the query at 400 sees 391 to 400: blocks 97 on
    assert manager.num_referenced_blocks == 100 + 3


SHAPES = {"window": st.integers(1, 12), "block_size": st.integers(1, 5), "step": st.integers(1, 9)}


@given(**SHAPES, chunks=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_no_sequence_holds_more_than_the_bound(window, block_size, step, chunks):
    ends = list(itertools.accumulate(min(chunk, step) for chunk in chunks))
    assert most_held(window, block_size, ends) <= blocks_held(
        ends[-1], window, block_size=block_size, max_step_tokens=step
    )


@settings(max_examples=50)
@given(**SHAPES)
def test_a_long_sequence_reaches_the_bound(window, block_size, step):
    """Decode until the window lies across as many blocks as it can, then take a whole step."""
    begin = window + block_size
    held = max(most_held(window, block_size, [*range(1, end + 1), end + step]) for end in range(begin, 2 * begin))
    assert held == blocks_held(10**9, window, block_size=block_size, max_step_tokens=step)


def most_held(window: int, block_size: int, ends: list[int]) -> int:
    """The most blocks held by a sequence whose steps end at ``ends``."""
    manager = make_manager(window, num_blocks=200, block_size=block_size)
    seq = start(manager, list(range(ends[-1])), room=ends[0], read_cache=False)
    counts = []
    for end in ends:
        assert manager.extend(seq, end) is not None
        counts.append(manager.num_referenced_blocks)
        manager.publish(seq, end)
    return max(counts)


def test_a_block_is_given_back_only_after_what_sees_it_was_computed():
    manager = make_manager(6)
    seq = start(manager, list(range(20)))
    assert len(held(seq)) == 5
    manager.publish(seq, 8)  # the query at 8 sees 3 to 8
    assert seq.block_ids[0][0] != 0
    manager.publish(seq, 9)
    assert seq.block_ids[0][0] == 0
    assert seq.block_ids[0][1] != 0


def test_passed_blocks_are_found_until_they_are_evicted_the_first_positions_first():
    manager = make_manager(6, num_blocks=9)
    tokens = list(range(24))
    run(manager, tokens)  # holds blocks 4 and 5
    assert hit_tokens(manager, [*tokens[:8], 99]) == 8
    evict(manager, 3)  # two of them had never been used
    assert hit_tokens(manager, [*tokens[:8], 99]) == 0
    assert hit_tokens(manager, [*tokens[:9], 99]) == 9  # the query at 9 sees 4 to 9: the first block no more
    assert hit_tokens(manager, [*tokens[:13], 99]) == 13


def test_groups_lose_the_same_positions_first():
    manager = make_manager(6, 6, None, num_blocks=33)
    tokens = list(range(24))
    seq = run(manager, tokens, step=24)
    first = [block.token_ids for block in manager._pool._free if block.block_hash is not None]
    assert first == [tuple(tokens[start : start + 4]) for start in (0, 4, 8, 12) for _ in range(2)]
    manager.release(seq, publish_tail=False)


def test_a_hit_needs_only_the_blocks_of_the_last_window():
    """After the early blocks of the window's group are evicted; those of full attention are all there."""
    manager = make_manager(None, 6, num_blocks=21)
    tokens = list(range(32))
    run(manager, tokens)  # holds all 8, and 2 of the window
    evict(manager, 10)  # four of them had never been used
    assert len(manager._index._blocks[1]) == 2
    second = manager.new_sequence([*tokens, 99], ROOT)
    hit = manager.find_hit(second)
    assert hit.num_tokens == 32
    assert [block.block_id for block in hit.blocks[1]][:6] == [0] * 6
    assert manager.admit(second, hit, 33) is not None
    manager.check()
    assert hit_tokens(manager, [*tokens[:24], 99]) == 0


def test_the_next_turn_of_a_chat_hits_the_tail_with_the_window_before_it():
    manager = make_manager(None, 6)
    tokens = list(range(30))
    manager.release(run(manager, tokens, step=7), publish_tail=True)
    later = manager.new_sequence([*tokens, 99, 98], ROOT)
    hit = manager.find_hit(later)
    assert hit.num_tokens == 30
    allocation = manager.admit(later, hit, 32)
    assert [source for source, _ in allocation.copies] == [block.block_id for block in hit.tail]
    assert len(held(later, 1)) == 2  # the query at 30 sees 25 to 30: a shared block and the copy of the tail


def test_a_tail_is_taken_over_where_there_is_no_room_beside_it():
    manager = make_manager(6, num_blocks=4)
    tokens = list(range(22))
    manager.release(run(manager, tokens), publish_tail=True)
    later = manager.new_sequence([*tokens, 99, 98], ROOT)
    hit = manager.find_hit(later)
    assert hit.num_tokens == 22
    evict(manager, 1)
    assert manager.admit(later, hit, 24) is not None
    manager.check()
    other = start(manager, [7], room=1)
    assert manager.num_free_blocks == 0
    manager.release(other, publish_tail=False)
    compute(manager, later, 24)


def test_after_a_long_hit_nothing_is_taken_for_what_no_query_sees():
    manager = make_manager(6, num_blocks=6)
    tokens = list(range(100))
    manager.release(run(manager, tokens), publish_tail=False)
    again = manager.new_sequence([*tokens[:100], 5, 6], ROOT)
    hit = manager.find_hit(again)
    assert hit.num_tokens == 100
    assert len(manager.admit(again, hit, 102).copies) == 1
    assert len(again.block_ids[0]) == 26
    assert manager.num_referenced_blocks == 3


def test_forks_share_what_is_left_and_each_gives_it_back_when_its_own_window_has_passed():
    manager = make_manager(6)
    parent = run(manager, list(range(13)))
    child = manager.fork(parent, [*range(13), 50, 51, 52, 53, 54])
    manager.check()
    assert child.block_ids == parent.block_ids
    assert child.block_ids[0][:2] == [0, 0]
    shared = child.block_ids[0][2]
    compute(manager, child, 18)
    assert child.block_ids[0][2] == 0
    assert parent.block_ids[0][2] == shared
    assert parent.blocks[0][2].ref_count == 1


def test_a_preempted_sequence_comes_back_to_its_window():
    manager = make_manager(6, None)
    seq = run(manager, list(range(30)))
    manager.release(seq, publish_tail=False)
    assert seq.block_ids == ([], [])
    hit = manager.find_hit(seq)
    assert hit.num_tokens == 28
    assert manager.admit(seq, hit, 30) is not None
    compute(manager, seq, 30)
    assert seq.block_ids[0][:6] == [0] * 6


def test_a_restarted_sequence_stays_admitted_and_computes_from_the_first_token_on():
    manager = make_manager(6, None)
    seq = run(manager, list(range(20)), write_cache=False)
    version = seq.table_version
    manager.restart(seq)
    manager.check()
    assert manager.num_referenced_blocks == 0
    assert seq.table_version > version
    compute(manager, seq, 20, step=7)
    assert len(held(seq, 0)) == 2
    manager.release(seq, publish_tail=True)
    assert manager.num_referenced_blocks == 0
    with pytest.raises(BlockError, match="admit it first"):
        manager.restart(seq)


def test_content_that_somebody_else_published_is_exchanged_before_a_window_passes_it():
    manager = make_manager(6)
    tokens = list(range(20))
    first, second = start(manager, list(tokens)), start(manager, list(tokens))
    manager.publish(first, 20)
    manager.publish(second, 20)
    manager.check()
    assert second.block_ids == first.block_ids
    assert manager.num_cached_blocks == 5


def test_what_a_sequence_will_still_take_counts_by_its_window():
    manager = make_manager(6, None)
    seq = start(manager, list(range(40)), room=8)
    assert manager.num_blocks_short(seq, 40, max_step_tokens=8) == (4 - 2) + (10 - 2)
    manager.publish(seq, 8)
    compute(manager, seq, 40, step=8)
    assert manager.num_blocks_short(seq, 41, max_step_tokens=1) == (3 - 2) + 1


def corrupt_early(seq: SequenceBlocks) -> None:
    seq.num_computed += SIZE  # as if a block more had been passed


def corrupt_hole(seq: SequenceBlocks) -> None:
    seq.blocks[0][4], seq.block_ids[0][4] = seq.blocks[0][0], 0


def corrupt_full(seq: SequenceBlocks) -> None:
    seq.blocks[1][0], seq.block_ids[1][0] = seq.blocks[0][0], 0


@pytest.mark.parametrize("corrupt", [corrupt_early, corrupt_hole, corrupt_full])
def test_check_finds_a_null_entry_that_should_not_be_or_one_that_should(corrupt):
    manager = make_manager(6, None)
    seq = run(manager, list(range(17)))
    seq.num_published = 0
    corrupt(seq)
    with pytest.raises(BlockError):
        manager.check()
