"""How long blocks lived, lay idle and waited for their next use, on a clock that the test moves."""

from __future__ import annotations

import pytest

from octavo.kv.hashing import BlockHash
from octavo.kv.manager import KVCacheManager
from octavo.kv.residency import Residency
from octavo.kv.sequence import SequenceBlocks

ROOT = BlockHash(bytes(32))


class Cache:
    """A manager of few blocks of 2 tokens, with its residency and the clock of both."""

    def __init__(self, usable_blocks: int) -> None:
        self.now = 1000.0
        self.residency = Residency(usable_blocks + 1, lambda: self.now)
        self.manager = KVCacheManager(num_blocks=usable_blocks + 1, block_size=2, watcher=self.residency)

    def compute(self, tokens: list[int]) -> SequenceBlocks:
        """A sequence whose tokens are computed and published."""
        seq = self.manager.new_sequence(tokens, ROOT)
        assert self.manager.admit(seq, self.manager.find_hit(seq), len(tokens)) is not None
        self.manager.publish(seq, len(tokens))
        return seq

    def release(self, seq: SequenceBlocks) -> None:
        self.manager.release(seq, publish_tail=True)

    def counts(self) -> tuple[int, int, int]:
        seen = self.residency
        return seen.lifetime.count, seen.idle_before_evict.count, seen.reuse_gap.count


@pytest.fixture
def cache() -> Cache:
    return Cache(usable_blocks=3)


def test_a_block_lives_until_it_is_evicted_and_is_idle_since_it_was_dropped(cache: Cache) -> None:
    seq = cache.compute([1, 2])
    cache.now += 10
    cache.release(seq)
    cache.now += 5
    assert cache.counts() == (0, 0, 0), "nothing is said before a block is gone"
    cache.compute([7, 7, 7, 7, 7, 7])
    assert cache.counts() == (1, 1, 0)
    assert (cache.residency.lifetime.sum, cache.residency.idle_before_evict.sum) == (15, 5)


def test_a_gap_is_the_time_nobody_held_a_block_that_is_taken_again(cache: Cache) -> None:
    cache.release(cache.compute([1, 2]))
    for gap in (3, 4):
        cache.now += gap
        seq = cache.compute([1, 2, 3])
        cache.now += 100  # in use, not waiting
        cache.release(seq)
        cache.manager.reset_prefix_cache() if gap == 4 else None
    assert cache.residency.reuse_gap.sum == 3 + 4


def test_a_block_that_somebody_holds_does_not_wait_for_the_next_who_takes_it(cache: Cache) -> None:
    first = cache.compute([1, 2])
    cache.now += 10
    second = cache.compute([1, 2, 3])
    cache.release(first)
    cache.release(second)
    assert cache.counts() == (0, 0, 0)


def test_a_tail_that_is_copied_was_used(cache: Cache) -> None:
    cache.release(cache.compute([1]))
    cache.now += 2
    cache.compute([1, 2, 3])
    assert cache.counts() == (0, 0, 1) and cache.residency.reuse_gap.sum == 2


def test_a_tail_that_is_written_on_was_not_evicted() -> None:
    cache = Cache(usable_blocks=1)
    cache.release(cache.compute([1]))
    cache.now += 2
    cache.compute([1, 2])
    assert cache.counts() == (0, 0, 1)


def test_what_is_forgotten_on_demand_was_not_evicted(cache: Cache) -> None:
    cache.release(cache.compute([1, 2]))
    assert cache.manager.reset_prefix_cache() == 1
    cache.compute([7, 7, 7, 7, 7, 7])
    assert cache.counts() == (0, 0, 0)


def test_a_block_that_is_used_anew_begins_a_new_life() -> None:
    cache = Cache(usable_blocks=1)
    for token, age in ((1, 10), (2, 20), (3, 0)):
        cache.release(cache.compute([token, token]))
        cache.now += age
    assert (cache.residency.lifetime.count, cache.residency.lifetime.sum) == (2, 30)
