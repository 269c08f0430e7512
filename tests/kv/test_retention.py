"""What is evicted first: unpublished blocks, then ordinary ones, the least worth of them, then retained ones."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.manager import KVCacheManager
from octavo.kv.pool import BlockPool
from octavo.kv.prefix import PrefixIndex
from octavo.kv.residency import Unwatched

ROOT = BlockHash(bytes(32))
SIZE = 4


@dataclass
class Known:
    """What the model knows of a block."""

    holders: int = 0
    published: bool = False
    level: int = 0
    keep_until: float = 0
    retained: bool = False
    order: int = 0

    def place(self) -> tuple[int, int, int]:
        if not self.published:
            return 0, 0, -self.order
        return (2, 0, self.order) if self.retained else (1, self.level, self.order)


class AnyOrder(RuleBasedStateMachine):
    """A pool beside a dictionary: what is free stands there in no order, and is sorted whenever somebody asks."""

    @initialize(num_blocks=st.integers(2, 12), budget=st.sampled_from([0, 0.3, 0.5, 1]))
    def start(self, num_blocks: int, budget: float) -> None:
        self.now = 100.0
        self.index = PrefixIndex(block_size=2, group_windows=[None])
        self.pool = BlockPool(num_blocks, self.index, Unwatched(), retention_budget=budget, clock=lambda: self.now)
        self.budget = int((num_blocks - 1) * budget)
        self.age = self.orders = self.contents = 0
        self.known = {block: Known(order=-block.block_id) for block in self.pool._blocks[1:]}

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        free = self.free()
        taken = self.pool.allocate(count)
        if count > len(free):
            assert taken is None
            return
        if count > sum(not self.known[block].published for block in free):
            self.expire()
        expected = self.free()[:count]
        assert taken == expected, "nobody who needs memory is refused, and what is worth least goes first"
        for block in expected:
            known = self.known[block]
            if known.published and not known.retained and known.level > self.age:
                self.age += 1
            self.known[block] = Known(holders=1)

    @precondition(lambda self: self.held())
    @rule(picks=st.lists(st.integers(0, 20), min_size=1, max_size=5), length=st.integers(1, 40), publish=st.booleans())
    def free_some(self, picks: list[int], length: int, publish: bool) -> None:
        for block in dict.fromkeys(self.held()[pick % len(self.held())] for pick in picks):
            known = self.known[block]
            if publish and not known.published:
                self.contents += 1
                tokens = (self.contents, self.contents)
                self.index.publish(block, 0, hash_block(ROOT, tokens), ROOT, tokens)
                known.published = True
            self.pool.free([block], length=length)
            known.holders -= 1
            known.level = max(known.level, self.age + math.floor(math.log2(length) ** 2))
            if not known.holders:
                self.add(known)

    @rule(pick=st.integers(0, 20))
    def touch(self, pick: int) -> None:
        blocks = [block for block, known in self.known.items() if known.published or known.holders]
        if blocks:
            block = blocks[pick % len(blocks)]
            self.pool.touch([block])
            self.known[block].holders += 1
            self.known[block].retained = False

    @rule(picks=st.lists(st.integers(0, 20), min_size=1, max_size=5), seconds=st.integers(-1, 9))
    def retain(self, picks: list[int], seconds: int) -> None:
        blocks = self.published_or_held(picks)
        self.pool.retain(blocks, self.now + seconds)
        for block in blocks:
            self.set_time(self.known[block], max(self.known[block].keep_until, self.now + seconds))

    @rule(picks=st.lists(st.integers(0, 20), min_size=1, max_size=5))
    def release(self, picks: list[int]) -> None:
        blocks = self.published_or_held(picks)
        self.pool.release_retained(blocks)
        for block in blocks:
            if self.known[block].keep_until:
                self.set_time(self.known[block], 0)

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.index) > 3)
    @rule()
    def flush(self) -> None:
        gone = [block for block in self.free() if self.known[block].published]
        assert self.pool.evict_free() == len(gone)
        for block in reversed(gone):
            self.known[block] = Known()
            self.add(self.known[block])

    @rule()
    def free_once_too_often(self) -> None:
        for block in self.free()[:1]:
            with pytest.raises(BlockError, match="freed more often"):
                self.pool.free([block])

    @invariant()
    def the_pool_agrees(self) -> None:
        self.pool.check({block.block_id: known.holders for block, known in self.known.items()})
        assert list(self.pool._free) == self.free()
        assert self.pool.num_free == len(self.free())
        assert self.pool.num_evictable == sum(self.known[block].published for block in self.free())

    @rule()
    def ask_how_many_are_retained(self) -> None:
        self.expire()
        assert self.pool.num_retained == sum(known.retained for known in self.known.values()) <= self.budget

    def add(self, known: Known) -> None:
        self.orders += 1
        known.order = self.orders
        if not known.published:
            known.level, known.keep_until = 0, 0
        known.retained = known.keep_until > self.now
        kept = sorted((other for other in self.known.values() if other.retained), key=lambda other: other.order)
        for other in kept[: max(len(kept) - self.budget, 0)]:
            self.make_ordinary(other)

    def make_ordinary(self, known: Known) -> None:
        self.orders += 1
        known.retained, known.order = False, self.orders

    def set_time(self, known: Known, keep_until: float) -> None:
        known.keep_until = keep_until
        if not known.holders:
            known.retained = False
            self.add(known)

    def expire(self) -> None:
        over = [known for known in self.known.values() if known.retained and known.keep_until <= self.now]
        for known in sorted(over, key=lambda known: (known.keep_until, known.order)):
            self.make_ordinary(known)

    def free(self) -> list[Block]:
        return sorted(
            (block for block, known in self.known.items() if not known.holders),
            key=lambda block: self.known[block].place(),
        )

    def held(self) -> list[Block]:
        return [block for block, known in self.known.items() if known.holders]

    def published_or_held(self, picks: list[int]) -> list[Block]:
        blocks = [block for block, known in self.known.items() if known.published or known.holders]
        return list(dict.fromkeys(blocks[pick % len(blocks)] for pick in picks)) if blocks else []


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


class Cache:
    """A manager with a clock of its own, and requests that come and go."""

    def __init__(self, num_blocks: int, *windows: int | None, budget: float = 0.5) -> None:
        self.now = 0.0
        self.manager = KVCacheManager(
            num_blocks=num_blocks,
            block_size=SIZE,
            group_windows=windows or (None,),
            retention_budget=budget,
            clock=lambda: self.now,
        )
        self.fresh = 1000

    def ask(self, tokens: list[int], keep: int = 0, seconds: float = 300) -> int:
        """Compute ``tokens``, retain the first ``keep``; how many of them were cached."""
        manager = self.manager
        seq = manager.new_sequence(list(tokens), ROOT)
        hit = manager.find_hit(seq)
        assert manager.admit(seq, hit, len(tokens)) is not None
        manager.publish(seq, len(tokens))
        if keep:
            manager.retain(seq, keep, self.now + seconds)
        manager.release(seq, publish_tail=True)
        manager.check()
        return hit.num_tokens

    def distinct(self, num_blocks: int) -> list[int]:
        """The tokens of a request nobody made before."""
        self.fresh += 1
        return [self.fresh] * num_blocks * SIZE

    def cached(self, tokens: list[int]) -> int:
        return self.manager.find_hit(self.manager.new_sequence([*tokens, 0], ROOT)).num_tokens

    def small_requests(self, count: int, seed: int = 0, most: int = 4) -> None:
        lengths = random.Random(seed)
        for _ in range(count):
            self.ask(self.distinct(lengths.randint(2, most)))


@pytest.mark.parametrize("seed", range(5))
def test_small_requests_between_its_turns_leave_a_chat_whole_from_the_first_turn_on(seed):
    cache = Cache(64)
    chat = cache.distinct(40)
    cache.ask(chat)
    for turn in range(6):
        cache.small_requests(20, seed=10 * seed + turn)
        assert cache.cached(chat) == len(chat)
        chat += [turn] * SIZE
        cache.ask(chat)


def test_the_same_requests_displace_a_chat_that_is_as_short_as_they_are():
    cache = Cache(64)
    short = cache.distinct(4)
    cache.ask(short)
    cache.small_requests(40)
    assert cache.cached(short) == 0


def test_a_long_chat_that_nobody_returns_to_leaves_under_small_requests():
    cache = Cache(64)
    chat = cache.distinct(56)
    cache.ask(chat)
    cached = []
    for _ in range(20):
        cache.small_requests(10)
        cached.append(cache.cached(chat))
    assert cached == sorted(cached, reverse=True) and cached[-1] == 0
    assert cached[0] >= 52 * SIZE, "at first it only gives what is needed"


def test_an_abandoned_document_does_not_keep_two_chats_from_living_side_by_side():
    cache = Cache(64)
    cache.ask(cache.distinct(63))
    first, second = cache.distinct(10), cache.distinct(10)
    for _ in range(4):
        cache.ask(first)
        cache.ask(second)
    assert cache.cached(first) == len(first) and cache.cached(second) == len(second)


def test_a_beginning_that_short_requests_share_with_a_chat_is_worth_what_the_chat_is():
    cache = Cache(64)
    chat = cache.distinct(30)
    cache.ask(chat)
    for _ in range(8):
        cache.ask(chat[: 2 * SIZE] + cache.distinct(1))
    cache.small_requests(20)
    assert cache.cached(chat) == len(chat)


def test_a_chain_gives_its_end_first_whoever_used_its_beginning():
    cache = Cache(33)
    chat = list(range(30 * SIZE))
    cache.ask(chat)
    cache.ask(chat[: 10 * SIZE] + cache.distinct(1))
    left = []
    for need in range(1, 33, 3):
        cache.ask(cache.distinct(need))
        left.append(cache.cached(chat) // SIZE)
        first_tokens = {block.token_ids[0] for block in cache.manager._index._blocks[0].values()}
        assert first_tokens & set(chat) == {index * SIZE for index in range(left[-1])}, "all that is left is found"
    assert left == sorted(left, reverse=True) and 30 > left[2] > left[4] > left[-1] == 0


# Retained


def test_what_is_retained_outlives_what_is_ordinary_however_long():
    cache = Cache(33)
    kept, long = cache.distinct(4), cache.distinct(20)
    cache.ask(kept, keep=len(kept))
    cache.ask(long)
    cache.small_requests(40)
    cache.ask(cache.distinct(24))
    assert cache.cached(kept) == len(kept)
    assert cache.cached(long) < len(long)


def test_what_is_retained_goes_for_who_needs_the_memory_its_end_first():
    cache = Cache(11, budget=1)
    first, second = cache.distinct(5), cache.distinct(5)
    cache.ask(first, keep=len(first))
    cache.ask(second, keep=len(second))
    assert cache.manager.num_retained_blocks == 10
    assert cache.ask(cache.distinct(3)) == 0
    assert (cache.cached(first), cache.cached(second)) == (2 * SIZE, 5 * SIZE)
    assert cache.ask(cache.distinct(10)) == 0, "who needs everything gets everything"
    assert cache.manager.num_retained_blocks == 0


def test_only_the_tokens_that_were_named_are_retained_the_block_they_end_in_whole():
    cache = Cache(41)
    tokens = cache.distinct(10)
    cache.ask(tokens, keep=4 * SIZE + 1)
    assert cache.manager.num_retained_blocks == 5
    cache.ask(cache.distinct(32))
    cache.ask(cache.distinct(32))
    assert cache.cached(tokens) == 5 * SIZE


def test_when_its_time_is_over_it_is_ordinary():
    cache = Cache(33)
    kept = cache.distinct(4)
    cache.ask(kept, keep=len(kept), seconds=300)
    cache.small_requests(20)
    cache.now = 299.9
    assert cache.manager.num_retained_blocks == 4
    cache.now = 300
    assert cache.manager.num_retained_blocks == 0
    cache.small_requests(20)
    assert cache.cached(kept) == 0


def test_time_that_is_over_counts_before_anything_is_evicted():
    cache = Cache(11, budget=1)
    kept = cache.distinct(4)
    cache.ask(kept, keep=len(kept), seconds=10)
    cache.ask(long := cache.distinct(6))
    cache.now = 10
    cache.ask(cache.distinct(1))
    assert (cache.cached(kept), cache.cached(long)) == (3 * SIZE, 6 * SIZE)


def test_time_is_never_shortened():
    cache = Cache(33)
    kept = cache.distinct(4)
    cache.ask(kept, keep=len(kept), seconds=300)
    cache.ask([*kept, 5], keep=len(kept), seconds=10)
    assert cache.manager.retain_cached(ROOT, kept, 20) == len(kept)
    cache.now = 299
    assert cache.manager.num_retained_blocks == 4
    cache.manager.retain_cached(ROOT, kept, 400)
    cache.now = 399
    assert cache.manager.num_retained_blocks == 4


def test_beyond_the_budget_what_was_freed_longest_ago_is_ordinary():
    cache = Cache(41, budget=0.25)
    first, second = cache.distinct(6), cache.distinct(6)
    cache.ask(first, keep=len(first))
    cache.ask(second, keep=len(second))
    assert cache.manager.num_retained_blocks == 10
    cache.small_requests(30)
    assert (cache.cached(first), cache.cached(second)) == (4 * SIZE, 6 * SIZE)
    cache.ask([*first[: 4 * SIZE], 5])  # used again, it is the younger one
    cache.ask(cache.distinct(3), keep=3 * SIZE)
    assert cache.manager.num_retained_blocks == 10
    cache.small_requests(30)
    assert (cache.cached(first), cache.cached(second)) == (4 * SIZE, 3 * SIZE)


def test_without_a_budget_nothing_is_retained():
    cache = Cache(33, budget=0)
    kept = cache.distinct(4)
    cache.ask(kept, keep=len(kept))
    assert cache.manager.num_retained_blocks == 0
    cache.small_requests(40)
    assert cache.cached(kept) == 0


def test_what_is_cached_already_can_be_retained_and_released():
    cache = Cache(33)
    tokens = cache.distinct(5)
    assert cache.manager.retain_cached(ROOT, tokens, 300) == 0
    cache.ask(tokens)
    assert cache.manager.retain_cached(ROOT, [*tokens, 7, 8], 300) == len(tokens)
    cache.small_requests(30)
    assert cache.cached(tokens) == len(tokens)
    cache.manager.release_retained(ROOT, tokens)
    assert cache.manager.num_retained_blocks == 0
    cache.manager.check()
    cache.small_requests(30)
    assert cache.cached(tokens) == 0


def test_what_is_held_can_be_retained_and_released_too():
    cache = Cache(33)
    seq = cache.manager.new_sequence(tokens := cache.distinct(5), ROOT)
    cache.manager.admit(seq, cache.manager.find_hit(seq), len(tokens))
    cache.manager.publish(seq, len(tokens))
    assert cache.manager.retain_cached(ROOT, tokens, 300) == len(tokens)
    assert cache.manager.num_retained_blocks == 0
    cache.manager.release(seq, publish_tail=True)
    assert cache.manager.num_retained_blocks == 5
    again = cache.manager.new_sequence([*tokens, 1], ROOT)
    cache.manager.admit(again, cache.manager.find_hit(again), len(tokens) + 1)
    cache.manager.release_retained(ROOT, tokens)
    cache.manager.release(again, publish_tail=False)
    assert cache.manager.num_retained_blocks == 0


def test_resetting_the_cache_forgets_what_is_retained():
    cache = Cache(33)
    kept = cache.distinct(5)
    cache.ask(kept, keep=len(kept))
    assert cache.manager.reset_prefix_cache() == 5
    assert cache.manager.num_retained_blocks == 0 == cache.cached(kept)
    cache.ask(kept)
    assert cache.manager.num_retained_blocks == 0
    cache.manager.check()


def test_forks_and_who_ends_first_change_nothing():
    cache = Cache(33)
    manager, tokens = cache.manager, [*cache.distinct(3), 1, 2]
    parent = manager.new_sequence(list(tokens), ROOT)
    manager.admit(parent, manager.find_hit(parent), len(tokens))
    manager.publish(parent, len(tokens), publish_tail=True)
    child = manager.fork(parent, list(tokens))
    manager.retain(parent, len(tokens), 300)
    for seq, token in ((parent, 3), (child, 4)):
        for _ in range(5):
            seq.tokens.append(token)
            assert manager.extend(seq, len(seq.tokens)) is not None
        manager.publish(seq, len(seq.tokens))
    manager.release(parent, publish_tail=True)
    manager.release(child, publish_tail=True)
    manager.check()
    cache.small_requests(40)
    assert cache.cached(tokens) == len(tokens)


def test_preempted_and_computed_by_somebody_else_it_stays_retained():
    cache = Cache(33)
    manager, tokens = cache.manager, [*cache.distinct(3), 1]
    first, second = (manager.new_sequence(list(tokens), ROOT) for _ in range(2))
    for seq in (first, second):
        manager.admit(seq, manager.find_hit(seq), len(tokens))
    manager.publish(first, len(tokens), publish_tail=True)
    manager.retain(first, len(tokens), 300)
    manager.publish(second, len(tokens), publish_tail=True)  # gives its own up
    first.tokens += [5, 6, 7]
    assert manager.extend(first, len(first.tokens)) is not None
    manager.publish(first, len(first.tokens))
    manager.release(first, publish_tail=False)  # preempted
    manager.release(second, publish_tail=True)
    cache.small_requests(40)
    assert cache.cached(tokens) == len(tokens)


def test_content_that_is_held_once_keeps_the_longer_time():
    """Who retained a block that was not full yet, and then found it published by another, retained the other's."""
    cache = Cache(33)
    manager, tokens = cache.manager, cache.distinct(2)
    first, second = (manager.new_sequence(list(tokens), ROOT) for _ in range(2))
    for seq in (first, second):
        manager.admit(seq, manager.find_hit(seq), len(tokens))
    manager.publish(first, SIZE + 2)
    manager.retain(first, SIZE + 2, 300)
    manager.publish(second, len(tokens))
    manager.release(second, publish_tail=True)
    manager.publish(first, len(tokens))
    manager.release(first, publish_tail=True)
    assert manager.num_retained_blocks == 2
    cache.small_requests(40)
    assert cache.cached(tokens) == len(tokens)


@pytest.mark.parametrize("windows", [(6,), (None, 6), (6, None, 10)])
def test_with_windows_it_is_what_the_query_after_these_tokens_sees(windows):
    cache = Cache(120, *windows)
    tokens = cache.distinct(12)
    for token in range(len(tokens)):
        tokens[token] = token
    cache.ask(tokens, keep=5 * SIZE + 1)  # windows have passed it when it is retained
    full, passed = windows.count(None), sum(window is not None for window in windows)
    assert cache.manager.num_retained_blocks <= 6 * full + 4 * passed
    for _ in range(40):
        cache.ask(cache.distinct(8))
    assert cache.cached(tokens[: 5 * SIZE + 1]) == 5 * SIZE + 1


def test_a_retained_block_that_is_evicted_forgets_it():
    cache = Cache(6, budget=1)
    kept = cache.distinct(5)
    cache.ask(kept, keep=len(kept))
    cache.ask(other := cache.distinct(5))
    assert cache.manager.num_retained_blocks == 0
    cache.ask(cache.distinct(2))
    assert cache.cached(other) == 3 * SIZE


def test_a_retained_tail_stays_when_a_longer_one_takes_its_place():
    cache = Cache(33)
    tokens = [*cache.distinct(2), 1]
    cache.ask(tokens, keep=len(tokens))
    cache.ask([*tokens, 2, 3])
    cache.small_requests(40)
    assert cache.cached(tokens) == len(tokens)


def test_a_retained_tail_that_comes_to_add_nothing_hands_its_time_on():
    """Retained while its owner filled it beside a longer block of another, and given up for that one at the end."""
    cache = Cache(33)
    manager, tokens = cache.manager, [*cache.distinct(2), 1]
    owner = manager.new_sequence(list(tokens), ROOT)
    manager.admit(owner, manager.find_hit(owner), len(tokens))
    manager.publish(owner, len(tokens), publish_tail=True)
    cache.ask([*tokens, 2, 3])
    manager.retain_cached(ROOT, tokens, 300)
    owner.tokens.append(2)
    assert manager.extend(owner, len(owner.tokens)) is not None
    manager.publish(owner, len(owner.tokens))
    manager.release(owner, publish_tail=True)
    assert manager.num_retained_blocks == 3
    cache.small_requests(40)
    assert cache.cached(tokens) == len(tokens)


def test_what_is_retained_anew_with_every_use_takes_no_more_memory():
    """As a named cache is that lives for a day: each use is a time of its own, none of which is over."""
    cache = Cache(33)
    tokens = cache.distinct(3)
    cache.ask(tokens)
    for use in range(1000):
        cache.manager.retain_cached(ROOT, tokens, 86_400 + use)
    retained = cache.manager._pool._free._retained
    assert len(retained) == 3
    assert len(retained._by_time) == 1 and len(retained._times) < 20
    cache.now = 86_400 + 999
    assert cache.manager.num_retained_blocks == 0
    cache.manager.check()
