"""The rules of the cache, each a claim about KVCacheManager."""

from __future__ import annotations

import pytest

import octavo.kv.prefix
import octavo.kv.publishing
import octavo.kv.sequence
from octavo.kv.allocator import Allocation
from octavo.kv.block import BlockError
from octavo.kv.hashing import BlockHash
from octavo.kv.hit import PrefixHit
from octavo.kv.manager import KVCacheManager
from octavo.kv.sequence import SequenceBlocks

ROOT = BlockHash(bytes(32))
SIZE = 4


def make_manager(num_blocks: int = 33, **options) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=SIZE, **options)


def admit(manager: KVCacheManager, seq: SequenceBlocks) -> tuple[PrefixHit, Allocation]:
    """Admit a sequence with room for all its tokens; it must fit."""
    hit = manager.find_hit(seq)
    allocation = manager.admit(seq, hit, len(seq.tokens))
    assert allocation is not None
    manager.check()
    return hit, allocation


def run(manager: KVCacheManager, tokens: list[int], **options) -> tuple[SequenceBlocks, int]:
    """Admit, compute and publish all of ``tokens``. Returns the sequence and the size of its hit."""
    seq = manager.new_sequence(list(tokens), options.pop("root", ROOT), **options)
    hit, _ = admit(manager, seq)
    manager.publish(seq, len(tokens))
    manager.check()
    return seq, hit.num_tokens


def finish(manager: KVCacheManager, *seqs: SequenceBlocks, publish_tail: bool = False) -> None:
    for seq in seqs:
        manager.release(seq, publish_tail=publish_tail)
    manager.check()


def decode(manager: KVCacheManager, seq: SequenceBlocks, token: int) -> Allocation:
    """One token more: append, extend, compute, publish."""
    seq.tokens.append(token)
    allocation = manager.extend(seq, len(seq.tokens))
    assert allocation is not None
    manager.publish(seq, len(seq.tokens))
    manager.check()
    return allocation


def state(manager: KVCacheManager) -> object:
    blocks = [(b.block_id, b.ref_count, b.block_hash, b.token_ids) for b in manager._pool._blocks]
    return blocks, [b.block_id for b in manager._pool._free], dict(manager._announced._hashes)


# Lookup


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE - 1, 3 * SIZE, 3 * SIZE + 1])
def test_a_hit_covers_at_most_all_tokens_but_the_last(length):
    manager = make_manager()
    tokens = list(range(length))
    first, _ = run(manager, tokens)
    second, hit_tokens = run(manager, tokens)
    # The full blocks, and of a last one that is full all but its last token.
    assert hit_tokens == (length - 1 if length % SIZE == 0 else length // SIZE * SIZE)
    finish(manager, first, second, publish_tail=True)
    assert run(manager, tokens)[1] == length - 1


def test_after_a_full_hit_the_shared_last_block_is_not_written():
    manager = make_manager()
    tokens = list(range(3 * SIZE))
    first, _ = run(manager, tokens)
    second = manager.new_sequence(list(tokens), ROOT)
    hit, allocation = admit(manager, second)
    assert hit.num_tokens == 3 * SIZE - 1
    written = second.block_ids[0][2]
    assert written not in first.block_ids[0]
    assert allocation.copies == [(first.block_ids[0][2], written)]


def test_finding_a_hit_is_read_only():
    manager = make_manager()
    seq, _ = run(manager, list(range(10)))
    finish(manager, seq, publish_tail=True)
    before = state(manager)
    for length in range(1, 14):
        manager.find_hit(manager.new_sequence(list(range(length)), ROOT))
    assert state(manager) == before


def test_a_hit_does_not_cross_namespaces():
    manager = make_manager()
    tokens = list(range(10))
    run(manager, tokens)
    assert run(manager, tokens, root=BlockHash(b"another tenant".ljust(32)))[1] == 0


def test_a_colliding_hash_with_other_tokens_is_a_miss(monkeypatch):
    constant = BlockHash(b"c" * 32)
    for module in (octavo.kv.publishing, octavo.kv.prefix, octavo.kv.sequence):
        monkeypatch.setattr(module, "hash_block", lambda parent, tokens: constant)
    manager = make_manager()
    first, _ = run(manager, [1] * 10)
    other, hit_tokens = run(manager, [2] * 10)
    assert hit_tokens == 0
    assert first.write_cache is other.write_cache is False  # the chain behind a collision is not published
    assert run(manager, [1] * 5)[1] == SIZE


def test_a_hit_ends_at_the_first_token_that_differs():
    manager = make_manager()
    run(manager, list(range(12)))
    for common in range(13):
        other, hit_tokens = run(manager, [*range(common), *[99] * (14 - common)], write_cache=False)
        assert hit_tokens == common
        finish(manager, other)


def test_a_lookup_says_what_a_request_would_find_and_changes_nothing():
    manager = make_manager()
    assert manager.lookup(ROOT, list(range(10))) == 0
    seq, _ = run(manager, list(range(10)))
    finish(manager, seq, publish_tail=True)
    before = state(manager)
    lengths = [manager.lookup(ROOT, list(range(length))) for length in range(1, 14)]
    assert lengths == [*range(10), 10, 10, 10]
    assert manager.lookup(ROOT, [0, 1, 2, 3, 4, 99, 6]) == 5
    assert manager.lookup(BlockHash(b"another tenant".ljust(32)), list(range(10))) == 0
    assert state(manager) == before


def test_a_sequence_that_does_not_read_the_cache_never_hits_and_still_publishes():
    manager = make_manager()
    tokens = list(range(10))
    run(manager, tokens[:SIZE])
    reader, hit_tokens = run(manager, tokens, read_cache=False)
    assert hit_tokens == 0
    assert reader.block_ids[0][0] != 1  # nor is its own block exchanged for one that somebody else computed
    assert run(manager, tokens)[1] == 2 * SIZE


def test_a_sequence_that_does_not_write_the_cache_is_never_hit():
    manager = make_manager()
    tokens = list(range(10))
    seq, _ = run(manager, tokens, write_cache=False)
    assert run(manager, tokens)[1] == 0
    finish(manager, seq, publish_tail=True)
    assert manager.num_cached_blocks == 2


def test_without_prefix_caching_nothing_is_published_or_hit():
    manager = make_manager(enable_prefix_caching=False)
    seq, _ = run(manager, list(range(10)))
    assert not seq.hashes
    finish(manager, seq, publish_tail=True)
    assert manager.num_cached_blocks == 0
    assert run(manager, list(range(10)))[1] == 0


# Tails


def test_a_tail_is_reused_by_who_continues_it():
    manager = make_manager()
    seq, _ = run(manager, list(range(10)))
    tail_id = seq.block_ids[0][2]
    finish(manager, seq, publish_tail=True)
    longer = manager.new_sequence(list(range(13)), ROOT)
    hit, allocation = admit(manager, longer)
    assert hit.num_tokens == 10
    target, last = longer.block_ids[0][2:]
    assert target != tail_id
    assert allocation.copies == [(tail_id, target), (0, last)]


def test_a_tail_is_immutable_and_serves_many():
    manager = make_manager()
    seq, _ = run(manager, list(range(6)))
    finish(manager, seq, publish_tail=True)
    for token in (100, 101, 102):
        assert run(manager, [*range(6), token, token])[1] == 6


def test_a_tail_that_was_not_published_is_not_reused():
    manager = make_manager()
    seq, _ = run(manager, list(range(10)))
    finish(manager, seq, publish_tail=False)
    assert run(manager, list(range(13)))[1] == 2 * SIZE


def test_a_tail_whose_tokens_go_another_way_is_a_hit_up_to_there():
    manager = make_manager()
    seq, _ = run(manager, list(range(10)))
    tail_id = seq.block_ids[0][2]
    finish(manager, seq, publish_tail=True)
    other, hit_tokens = run(manager, [*range(9), 100, 101])
    assert hit_tokens == 9
    assert other.block_ids[0][2] != tail_id
    assert run(manager, list(range(11)))[1] == 10  # what goes another way was left alone


def test_only_computed_tokens_become_a_tail():
    manager = make_manager()
    seq = manager.new_sequence(list(range(10)), ROOT)
    admit(manager, seq)
    manager.publish(seq, 5)
    finish(manager, seq, publish_tail=True)
    assert run(manager, list(range(10)))[1] == 5


def test_a_tail_that_a_fork_goes_on_filling_is_found_as_far_as_it_was_published():
    manager = make_manager()
    parent, _ = run(manager, list(range(6)))
    child = manager.fork(parent, list(range(6)))
    finish(manager, parent, publish_tail=True)
    shared = child.block_ids[0][1]
    decode(manager, child, 6)
    assert child.block_ids[0][1] == shared  # nobody else holds it: no copy
    assert manager.lookup(ROOT, [*range(9)]) == 6
    decode(manager, child, 7)
    assert manager.lookup(ROOT, [*range(9)]) == 8
    assert manager.num_cached_blocks == 2
    finish(manager, child)


def test_where_a_prompt_ends_its_block_is_found_while_its_owner_fills_it():
    manager = make_manager()
    owner = manager.new_sequence(list(range(6)), ROOT)
    admit(manager, owner)
    manager.publish(owner, 6, publish_tail=True)
    block = owner.blocks[0][1]
    assert block.token_ids == (4, 5)
    second, hit_tokens = run(manager, list(range(6)))
    assert hit_tokens == 5
    assert second.block_ids[0][1] != block.block_id
    decode(manager, owner, 6)
    assert block.token_ids == (4, 5)  # a decode publishes full blocks alone
    assert run(manager, list(range(8)), write_cache=False)[1] == 6
    decode(manager, owner, 7)
    assert block.token_ids == (4, 5, 6, 7)
    assert manager.lookup(ROOT, list(range(9))) == 8


def test_a_source_that_its_owner_writes_in_the_same_step_is_copied_before():
    manager = make_manager()
    owner, _ = run(manager, list(range(6)))
    manager.publish(owner, 6, publish_tail=True)
    owner.tokens.append(6)
    assert manager.extend(owner, 7).copies == []
    reader = manager.new_sequence([*range(6), 99], ROOT)
    hit, allocation = admit(manager, reader)
    assert hit.num_tokens == 6
    assert allocation.copies == [(owner.block_ids[0][1], reader.block_ids[0][1])]  # before anything is computed


def test_what_was_published_of_a_prompt_outlives_its_owner():
    manager = make_manager()
    for tail in (False, True):
        owner, _ = run(manager, [tail, *range(5)])
        manager.publish(owner, 6, publish_tail=True)
        decode(manager, owner, 6)
        finish(manager, owner, publish_tail=tail)
        assert manager.lookup(ROOT, [tail, *range(5), 6, 7]) == 6 + tail


def test_a_sequence_that_does_not_write_the_cache_publishes_no_tail_either():
    manager = make_manager()
    seq, _ = run(manager, list(range(6)), write_cache=False)
    manager.publish(seq, 6, publish_tail=True)
    assert manager.num_cached_blocks == 0


def test_a_tail_that_begins_another_published_block_is_not_published():
    manager = make_manager()
    first, _ = run(manager, list(range(8)))
    second, _ = run(manager, list(range(6)))
    cached = manager.num_cached_blocks
    manager.publish(second, 6, publish_tail=True)
    finish(manager, first)
    finish(manager, second, publish_tail=True)
    assert manager.num_cached_blocks == cached == 2
    assert manager.num_evictable_blocks == 2


def test_a_longer_tail_takes_the_place_of_a_shorter_one_that_nobody_holds():
    manager = make_manager()
    turn, _ = run(manager, list(range(6)))
    finish(manager, turn, publish_tail=True)
    shorter = next(block for block in manager._pool._blocks if block.token_ids == (4, 5))
    following, hit_tokens = run(manager, list(range(7)))
    assert hit_tokens == 6
    assert manager.num_cached_blocks == 2
    finish(manager, following, publish_tail=True)
    assert manager.num_cached_blocks == 2
    assert manager.lookup(ROOT, list(range(9))) == 7
    assert next(iter(manager._pool._free)) is shorter, "free memory that holds nothing is used first"


def test_a_shorter_tail_that_is_held_stays_published():
    manager = make_manager()
    owner, _ = run(manager, list(range(6)))
    manager.publish(owner, 6, publish_tail=True)
    other, _ = run(manager, list(range(7)))
    finish(manager, other, publish_tail=True)
    assert owner.blocks[0][1].token_ids == (4, 5)
    finish(manager, owner, publish_tail=True)  # nobody holds it now, and it adds nothing
    assert manager.num_cached_blocks == 2
    assert manager.lookup(ROOT, list(range(9))) == 7


def test_a_longer_tail_is_kept_for_as_long_as_the_shorter_one_was_to_be():
    manager = make_manager()
    turn, _ = run(manager, list(range(6)))
    block = turn.blocks[0][1]
    finish(manager, turn, publish_tail=True)
    manager._pool.retain([block], 1e12)
    following, _ = run(manager, list(range(7)))
    finish(manager, following, publish_tail=True)
    longer = next(b for b in manager._pool._blocks if b.token_ids == (4, 5, 6))
    assert (block.keep_until, longer.keep_until) == (0, 1e12)


def test_a_tail_is_taken_over_when_there_is_no_room_for_a_copy_beside_it():
    manager = make_manager(num_blocks=4)
    seq, _ = run(manager, list(range(10)))
    tail_id = seq.block_ids[0][2]
    finish(manager, seq, publish_tail=True)
    longer = manager.new_sequence(list(range(12)), ROOT)
    hit, allocation = admit(manager, longer)
    assert hit.num_tokens == 10
    assert longer.block_ids[0][2] == tail_id
    assert allocation.copies == []
    assert manager.num_cached_blocks == 2  # the tail itself is written now, so it is no longer published


# Allocation


def test_a_block_is_taken_over_too_where_only_its_beginning_is_shared():
    manager = make_manager(num_blocks=4)
    seq, _ = run(manager, list(range(12)))
    last_id = seq.block_ids[0][2]
    finish(manager, seq)
    other = manager.new_sequence([*range(10), 98, 99], ROOT)
    hit, allocation = admit(manager, other)
    assert (hit.num_tokens, other.block_ids[0][2], allocation.copies) == (10, last_id, [])
    assert manager.num_cached_blocks == 2


def test_a_block_that_somebody_holds_is_never_taken_over():
    manager = make_manager(num_blocks=5)
    owner, _ = run(manager, list(range(10)))
    manager.publish(owner, 10, publish_tail=True)
    other = manager.new_sequence(list(range(12)), ROOT)
    hit, allocation = admit(manager, other)
    assert hit.num_tokens == 10
    assert allocation.copies == [(owner.block_ids[0][2], other.block_ids[0][2])]
    assert owner.blocks[0][2].token_ids == (8, 9)


def test_of_several_groups_only_what_nobody_holds_is_taken_over():
    manager = make_manager(num_blocks=8, group_windows=(None, None))
    seq, _ = run(manager, list(range(6)))
    held = seq.blocks[0][1]
    manager.publish(seq, 6, publish_tail=True)
    manager._pool.touch([held])  # somebody holds one of the two
    manager.release(seq, publish_tail=True)
    longer = manager.new_sequence(list(range(12)), ROOT)
    hit = manager.find_hit(longer)
    allocation = manager.admit(longer, hit, 12)
    assert hit.num_tokens == 6
    assert (held.block_id, longer.block_ids[0][1]) in allocation.copies
    assert longer.blocks[1][1] is hit.tail[1]


def test_hit_blocks_are_touched_before_new_ones_are_allocated():
    manager = make_manager(num_blocks=5)
    seq, _ = run(manager, list(range(2 * SIZE)))
    cached = list(seq.block_ids[0])
    finish(manager, seq)
    longer = manager.new_sequence(list(range(4 * SIZE)), ROOT)
    hit, allocation = admit(manager, longer)
    assert hit.num_tokens == 2 * SIZE
    assert longer.block_ids[0][:2] == cached
    assert {target for _, target in allocation.copies}.isdisjoint(cached)


def test_a_hit_block_that_nobody_holds_still_takes_capacity():
    manager = make_manager(num_blocks=5)
    seq, _ = run(manager, list(range(2 * SIZE)))
    finish(manager, seq)
    assert manager.num_free_blocks == 4
    longer = manager.new_sequence(list(range(5 * SIZE)), ROOT)
    assert manager.admit(longer, manager.find_hit(longer), 5 * SIZE) is None


def test_an_admission_that_does_not_fit_changes_nothing():
    manager = make_manager(num_blocks=6)
    seq, _ = run(manager, list(range(6)))
    finish(manager, seq, publish_tail=True)
    other, _ = run(manager, [100] * 8)
    before = state(manager)
    longer = manager.new_sequence(list(range(20)), ROOT)
    hit = manager.find_hit(longer)
    assert hit.num_tokens == 6
    assert manager.admit(longer, hit, 20) is None
    assert state(manager) == before
    assert longer.block_ids == ([],)
    assert manager.admit(longer, hit, 12) is not None
    finish(manager, other, longer)


def test_an_extension_that_does_not_fit_changes_nothing():
    manager = make_manager(num_blocks=4)
    parent, _ = run(manager, list(range(6)))
    child = manager.fork(parent, list(range(6)))
    before = state(manager)
    assert manager.extend(child, 12) is None  # a copy of the shared block and a new one: one too many
    assert state(manager) == before
    assert child.block_ids == parent.block_ids
    assert manager.extend(child, 8) is not None
    assert manager.extend(parent, 9) is None


def test_every_new_block_is_zeroed_or_copied_to_and_the_null_block_never_written():
    manager = make_manager()
    seq, _ = run(manager, list(range(6)))
    finish(manager, seq, publish_tail=True)
    longer = manager.new_sequence(list(range(20)), ROOT)
    hit, allocation = admit(manager, longer)
    targets = [target for _, target in allocation.copies]
    assert targets == longer.block_ids[0][len(hit.blocks[0]) :]
    assert 0 not in targets
    assert [source for source, _ in allocation.copies] == [hit.tail[0].block_id, 0, 0, 0]


def test_a_chain_loses_its_tail_first():
    manager = make_manager(num_blocks=5)
    tokens = list(range(4 * SIZE))
    seq, _ = run(manager, tokens)
    finish(manager, seq)
    for evicted in range(1, 4):
        other, _ = run(manager, [100 + evicted] * evicted * SIZE, write_cache=False, read_cache=False)
        finish(manager, other)
        assert manager.find_hit(manager.new_sequence([*tokens, 99], ROOT)).num_tokens == (4 - evicted) * SIZE


def test_evicted_content_is_a_miss_and_never_stale():
    manager = make_manager(num_blocks=4)
    tokens = list(range(3 * SIZE))
    seq, _ = run(manager, tokens)
    finish(manager, seq)
    other, _ = run(manager, [100] * 3 * SIZE)
    finish(manager, other)
    assert run(manager, tokens)[1] == 0


def test_a_hit_that_is_out_of_date_is_refused():
    manager = make_manager(num_blocks=4)
    seq, _ = run(manager, list(range(6)))
    finish(manager, seq, publish_tail=True)
    late = manager.new_sequence(list(range(8)), ROOT)
    hit = manager.find_hit(late)
    other, _ = run(manager, [100] * 3 * SIZE)
    finish(manager, other)
    with pytest.raises(BlockError, match="out of date"):
        manager.admit(late, hit, 8)
    manager.check()


def test_misuse_is_an_error_that_says_so():
    manager = make_manager()
    seq = manager.new_sequence(list(range(6)), ROOT)
    with pytest.raises(BlockError, match="admit it first"):
        manager.extend(seq, 6)
    with pytest.raises(BlockError, match="admit it first"):
        manager.publish(seq, 3)
    with pytest.raises(BlockError, match="admit it first"):
        manager.fork(seq, list(range(6)))
    assert seq.num_computed == 0
    with pytest.raises(BlockError, match="beyond the hit"):
        manager.admit(seq, manager.find_hit(seq), 0)
    admit(manager, seq)
    with pytest.raises(BlockError, match="release it"):
        manager.admit(seq, manager.find_hit(seq), 6)
    manager.check()


# Publishing


def test_a_block_is_published_only_after_its_values_were_computed():
    manager = make_manager()
    seq = manager.new_sequence(list(range(12)), ROOT)
    admit(manager, seq)
    asker = manager.new_sequence(list(range(12)), ROOT)
    for computed, hit_tokens in ((0, 0), (3, 0), (4, 4), (7, 4), (8, 8)):
        manager.publish(seq, computed)
        assert manager.find_hit(asker).num_tokens == hit_tokens


def test_content_that_somebody_else_published_meanwhile_is_held_once():
    manager = make_manager()
    tokens = list(range(2 * SIZE))
    first = manager.new_sequence(list(tokens), ROOT)
    second = manager.new_sequence(list(tokens), ROOT)
    admit(manager, first)
    admit(manager, second)
    free = manager.num_free_blocks
    version = second.table_version
    manager.publish(first, 8)
    manager.publish(second, 8)
    manager.check()
    assert second.block_ids == first.block_ids
    assert second.table_version > version
    assert manager.num_free_blocks == free + 2


def test_generated_tokens_are_shared_like_prompt_tokens():
    manager = make_manager()
    seq, _ = run(manager, list(range(6)))
    for token in range(6, 13):
        decode(manager, seq, token)
    assert run(manager, list(range(14)))[1] == 12


def test_a_prefix_that_a_running_sequence_computes_is_pending():
    manager = make_manager()
    tokens = list(range(3 * SIZE))
    asker = manager.new_sequence([*tokens, 99], ROOT)
    assert not manager.find_hit(asker).pending
    seq = manager.new_sequence(list(tokens), ROOT)
    admit(manager, seq)
    assert manager.find_hit(asker).pending
    manager.publish(seq, 2 * SIZE)
    hit = manager.find_hit(asker)
    assert (hit.num_tokens, hit.pending) == (2 * SIZE, True)
    manager.publish(seq, 3 * SIZE)
    hit = manager.find_hit(asker)
    assert (hit.num_tokens, hit.pending) == (3 * SIZE, False)


def test_nothing_is_pending_after_its_sequence_was_released():
    manager = make_manager()
    seq = manager.new_sequence(list(range(12)), ROOT)
    asker = manager.new_sequence(list(range(12)), ROOT)
    admit(manager, seq)
    assert manager.find_hit(asker).pending
    finish(manager, seq)
    assert not manager.find_hit(asker).pending


def test_a_block_that_a_hit_could_not_use_is_not_pending():
    manager = make_manager()
    admit(manager, manager.new_sequence(list(range(SIZE)), ROOT))
    assert not manager.find_hit(manager.new_sequence(list(range(SIZE)), ROOT)).pending
    assert manager.find_hit(manager.new_sequence(list(range(SIZE + 1)), ROOT)).pending


def test_waiting_sequences_never_wait_for_each_other():
    manager = make_manager()
    waiting = [manager.new_sequence(list(range(12)), ROOT) for _ in range(3)]
    assert not any(manager.find_hit(seq).pending for seq in waiting)


def test_a_sequence_that_does_not_write_the_cache_announces_nothing():
    manager = make_manager()
    admit(manager, manager.new_sequence(list(range(12)), ROOT, write_cache=False))
    assert not manager.find_hit(manager.new_sequence(list(range(12)), ROOT)).pending


# Forks


def test_a_fork_shares_all_computed_blocks():
    manager = make_manager()
    parent, _ = run(manager, list(range(10)))
    before = manager.num_referenced_blocks
    child = manager.fork(parent, list(range(10)))
    manager.check()
    assert child.block_ids == parent.block_ids
    assert manager.num_referenced_blocks == before


def test_a_shared_block_is_copied_before_it_is_written():
    manager = make_manager()
    parent, _ = run(manager, list(range(6)))
    child = manager.fork(parent, list(range(6)))
    shared = parent.block_ids[0][1]
    version = child.table_version
    copies = decode(manager, child, 100).copies
    assert copies == [(shared, child.block_ids[0][1])]
    assert child.table_version > version
    assert decode(manager, parent, 200).copies == []
    assert parent.block_ids[0][1] == shared
    assert parent.block_ids[0][0] == child.block_ids[0][0]


def test_forks_that_go_different_ways_publish_different_blocks():
    manager = make_manager()
    parent, _ = run(manager, list(range(6)))
    child = manager.fork(parent, list(range(6)))
    for token in (100, 101, 102):
        decode(manager, child, token)
        decode(manager, parent, token + 100)
    assert run(manager, [*range(6), 100, 101, 0])[1] == 8
    assert run(manager, [*range(6), 200, 201, 0])[1] == 8
    assert run(manager, [*range(6), 100, 201, 0])[1] == 7


# Preemption and release


def test_a_preempted_sequence_is_admitted_again_with_what_is_still_cached():
    manager = make_manager()
    seq, _ = run(manager, list(range(6)))
    for token in range(6, 10):
        decode(manager, seq, token)
    finish(manager, seq, publish_tail=False)
    assert (seq.num_computed, seq.block_ids) == (0, ([],))
    hit, _ = admit(manager, seq)
    assert hit.num_tokens == 8


def test_an_idle_manager_holds_no_blocks_whatever_state_the_requests_were_in():
    manager = make_manager()
    waiting = manager.new_sequence(list(range(12)), ROOT)
    prefilling = manager.new_sequence(list(range(12)), ROOT)
    admit(manager, prefilling)
    manager.publish(prefilling, 5)
    decoding, _ = run(manager, list(range(12)))
    decode(manager, decoding, 12)
    assert manager.num_referenced_blocks > 0
    finish(manager, waiting, prefilling, decoding)
    assert manager.num_referenced_blocks == 0
    assert manager.num_free_blocks == manager.num_blocks - 1


def test_releasing_twice_is_the_same_as_once():
    manager = make_manager()
    seq, _ = run(manager, list(range(6)))
    finish(manager, seq, publish_tail=True)
    before = state(manager)
    finish(manager, seq, publish_tail=True)
    assert state(manager) == before


def test_resetting_the_prefix_cache_forgets_what_nobody_holds():
    manager = make_manager()
    held, _ = run(manager, list(range(6)))
    gone, _ = run(manager, [100] * 6)
    finish(manager, gone, publish_tail=True)
    assert manager.num_cached_blocks == 3
    assert manager.reset_prefix_cache() == 2
    manager.check()
    assert run(manager, [100] * 6)[1] == 0
    assert run(manager, list(range(6)))[1] == 4
    finish(manager, held)


# Groups


def test_every_group_has_its_own_table_and_a_hit_needs_them_all():
    manager = make_manager(group_windows=(None, None))
    tokens = list(range(10))
    seq, _ = run(manager, tokens)
    left, right = seq.block_ids
    assert len(left) == len(right) == 3
    assert set(left).isdisjoint(right)
    lost = seq.blocks[1][1]
    finish(manager, seq, publish_tail=True)
    assert run(manager, [*tokens, 10])[1] == 10
    manager._index.remove(lost)
    assert manager.find_hit(manager.new_sequence(tokens, ROOT)).num_tokens == SIZE


# The self-check


def corrupt_table(seq: SequenceBlocks) -> None:
    seq.block_ids[0][0] += 1


def corrupt_ref_count(seq: SequenceBlocks) -> None:
    seq.blocks[0][0].ref_count += 1


def corrupt_count(seq: SequenceBlocks) -> None:
    seq.num_computed = 100


def corrupt_announcement(seq: SequenceBlocks) -> None:
    seq.num_announced -= 1


def corrupt_tokens(seq: SequenceBlocks) -> None:
    seq.blocks[0][0].token_ids = (1, 2, 3, 4)


@pytest.mark.parametrize(
    "corrupt", [corrupt_table, corrupt_ref_count, corrupt_count, corrupt_announcement, corrupt_tokens]
)
def test_check_finds_what_is_broken(corrupt):
    manager = make_manager()
    seq = manager.new_sequence(list(range(12)), ROOT)
    admit(manager, seq)
    manager.publish(seq, 5)
    manager.check()
    corrupt(seq)
    with pytest.raises(BlockError):
        manager.check()
