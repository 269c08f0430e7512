"""Blocks that come from elsewhere: how far they go, and what becomes of a sequence that waits for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash
from octavo.kv.loading import Offload, blocks_to_load, longest_prefix
from octavo.kv.manager import KVCacheManager
from octavo.kv.sequence import SequenceBlocks

ROOT = BlockHash(bytes(32))
SIZE = 4
WINDOWS = st.lists(st.none() | st.integers(1, 13), min_size=1, max_size=3)


class Kept(Offload):
    """Which blocks a tier could have been given."""

    def __init__(self) -> None:
        self.blocks: set[tuple[BlockHash | None, int]] = set()
        self.used_tokens: list[int] = []

    def published(self, root: BlockHash, block: Block) -> None:
        self.blocks.add((block.block_hash, block.group))

    def used(self, root: BlockHash, blocks: list[Block]) -> None:
        self.used_tokens.append(sum(len(block.token_ids) for block in blocks))

    def __call__(self, block_hash: BlockHash, group: int) -> bool:
        return (block_hash, group) in self.blocks


def make(num_blocks: int = 33, **options) -> tuple[KVCacheManager, Kept]:
    kept = Kept()
    return KVCacheManager(num_blocks=num_blocks, block_size=SIZE, offload=kept, **options), kept


def run(manager: KVCacheManager, tokens: list[int]) -> SequenceBlocks:
    seq = manager.new_sequence(list(tokens), ROOT)
    assert manager.admit(seq, manager.find_hit(seq), len(tokens)) is not None
    manager.publish(seq, len(tokens))
    return seq


def forget(manager: KVCacheManager, tokens: list[int]) -> None:
    manager.release(run(manager, tokens), publish_tail=True)
    manager.reset_prefix_cache()


@given(WINDOWS, st.integers(0, 4), st.integers(0, 6), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 9))))
def test_the_longest_prefix_is_the_longest_that_lacks_nothing(windows, start, more, there) -> None:
    def lacks_nothing(end: int) -> bool:
        seen = [(end * SIZE) if window is None else window - 1 for window in windows]
        return all(
            (group, position // SIZE) in there
            for group, count in enumerate(seen)
            for position in range(max(end * SIZE - count, start * SIZE), end * SIZE)
        )

    most = start + more
    found = longest_prefix(windows, SIZE, start, most, lambda *place: place in there)
    assert found == max(end for end in range(start, most + 1) if end == start or lacks_nothing(end))
    assert set(blocks_to_load(windows, SIZE, start, found)) <= there


def test_what_is_to_be_read_comes_with_the_first_positions_first_and_windows_leave_out_what_they_have_passed():
    assert blocks_to_load([None, 6], SIZE, 1, 4) == [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)]


def test_every_full_block_is_offered_once_it_is_computed_and_whole_ones_alone():
    manager, kept = make()
    seq = manager.new_sequence(list(range(11)), ROOT)
    assert manager.admit(seq, manager.find_hit(seq), 11) is not None
    assert not kept.blocks
    manager.publish(seq, 6, publish_tail=True)
    assert kept.blocks == {(seq.hashes[0], 0)}
    manager.publish(seq, 11, publish_tail=True)
    assert kept.blocks == {(seq.hashes[0], 0), (seq.hashes[1], 0)}


def test_what_is_used_is_told_when_it_is_begun_and_when_it_is_given_back():
    manager, kept = make()
    manager.release(run(manager, list(range(9))), publish_tail=True)
    assert kept.used_tokens == [8]
    manager.release(run(manager, [*range(9), 9, 9, 9, 9]), publish_tail=True)
    assert kept.used_tokens == [8, 8, 12]


def test_what_was_read_is_computed_and_found_and_its_last_token_never_read():
    manager, kept = make()
    forget(manager, list(range(16)))
    seq = manager.new_sequence(list(range(16)), ROOT)
    hit = manager.find_hit(seq)
    assert (hit.num_tokens, manager.longest_loadable(seq, hit, kept)) == (0, 3)
    targets = manager.begin_load(seq, hit, 3)
    assert targets is not None and [target.place for target in targets] == [(0, 0), (0, 1), (0, 2)]
    assert manager.lookup(ROOT, list(range(16))) == 0, "nothing is found before it is there"
    manager.finish_load(seq, {target.place for target in targets})
    assert seq.num_computed == 12 and manager.lookup(ROOT, list(range(16))) == 12
    assert [target.block_id for target in targets] == seq.block_ids[0]
    manager.check()


def test_behind_a_gap_nothing_is_kept():
    manager, _ = make()
    forget(manager, list(range(17)))
    seq = manager.new_sequence(list(range(17)), ROOT)
    free = manager.num_free_blocks
    assert manager.begin_load(seq, manager.find_hit(seq), 4) is not None
    assert manager.num_free_blocks == free - 4
    manager.finish_load(seq, {(0, 0), (0, 2), (0, 3)})
    assert seq.num_computed == 4 and manager.num_free_blocks == free - 1
    allocation = manager.extend(seq, 17)
    assert allocation is not None and all(source == 0 for source, _ in allocation.copies), "the rest is zeroed anew"
    manager.check()


def test_whoever_needs_the_same_prefix_meanwhile_waits_for_it():
    manager, _ = make()
    forget(manager, list(range(16)))
    first, second = (manager.new_sequence(list(range(16)), ROOT) for _ in range(2))
    assert manager.begin_load(first, manager.find_hit(first), 2) is not None
    assert manager.find_hit(second).pending
    manager.finish_load(first, set())
    assert manager.find_hit(second).pending, "now it is computed"
    manager.release(first, publish_tail=False)
    assert not manager.find_hit(second).pending


def test_a_hit_goes_on_from_whole_blocks_and_one_that_reads_no_cache_loads_nothing():
    manager, kept = make()
    forget(manager, list(range(13)))
    manager.release(run(manager, list(range(6))), publish_tail=True)
    seq = manager.new_sequence(list(range(13)), ROOT)
    hit = manager.find_hit(seq)
    assert (hit.num_tokens, len(hit.tail)) == (6, 1)
    targets = manager.begin_load(seq, hit, manager.longest_loadable(seq, hit, kept))
    assert targets is not None and [target.place for target in targets] == [(0, 1), (0, 2)]
    manager.finish_load(seq, set())
    assert seq.num_computed == 4
    stranger = manager.new_sequence(list(range(13)), ROOT, read_cache=False)
    assert manager.longest_loadable(stranger, manager.find_hit(stranger), kept) == 0


def test_a_load_that_does_not_fit_changes_nothing():
    manager, _ = make(num_blocks=4)
    forget(manager, list(range(12)))
    holder = run(manager, [9, 9, 9, 9, 9])
    seq = manager.new_sequence(list(range(12)), ROOT)
    free = manager.num_free_blocks
    assert manager.begin_load(seq, manager.find_hit(seq), 2) is None
    assert (manager.num_free_blocks, seq.num_blocks) == (free, 0)
    manager.release(holder, publish_tail=False)
    assert manager.begin_load(seq, manager.find_hit(seq), 2) is not None
    with pytest.raises(BlockError, match="holds blocks already"):
        manager.begin_load(seq, manager.find_hit(seq), 2)


def test_of_a_window_what_has_been_passed_is_neither_read_nor_found():
    manager, _ = make(group_windows=[None, 5])
    forget(manager, list(range(17)))
    seq = manager.new_sequence(list(range(17)), ROOT)
    targets = manager.begin_load(seq, manager.find_hit(seq), 4)
    assert targets is not None
    assert [target.place for target in targets] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]
    manager.finish_load(seq, {target.place for target in targets})
    manager.check()
    assert seq.block_ids[1][:3] == [0, 0, 0] and seq.num_computed == 16
    assert manager.num_cached_blocks == 5


def test_what_the_longer_hit_has_passed_and_whole_blocks_alone_need_is_missed():
    """A window of 4 sees block 1 from position 8, and not from 11, where the hit ends. It is gone: a load that fails
    would go on at 8 without it.
    """
    manager, _ = make(num_blocks=6, group_windows=[4])
    seq = run(manager, list(range(11)))
    manager.release(seq, publish_tail=True)
    filler = run(manager, [7] * 4 * 4)
    manager.release(filler, publish_tail=False)
    again = manager.new_sequence([*range(11), *range(90, 97)], ROOT)
    hit = manager.find_hit(again)
    assert hit.num_tokens == 11 and hit.blocks[0][1].block_id == 0
    assert manager.begin_load(again, hit, 4) is None
    manager.check()
