"""Whatever is done with a folder, in any order: a hit has the bytes that were stored, the limit is kept, and each slot
is one block's or free.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from folder_damage import EXISTING, TO_SLABS, Damage
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tier_blocks import BLOCK_BYTES, BLOCK_SIZE, block, check_slots, load, open_tier, origin, slabs, store

from octavo.tiers import slabs as slabs_module
from octavo.tiers.base import Result
from octavo.tiers.disk import DiskTier
from octavo.tiers.index import INDEX_BYTES, ROW_BYTES
from octavo.tiers.record import slot_bytes
from octavo.tiers.verifying import verify

SLOT = slot_bytes(BLOCK_BYTES, BLOCK_SIZE)
BLOCKS = {
    BLOCK_BYTES: [block(n) for n in range(14)],
    3 * BLOCK_BYTES: [block(n, "large", of=origin("large")) for n in range(5)],
}
SOME = st.lists(st.integers(0, 13), min_size=1, max_size=8)
CALLS = {name: getattr(os, name) for name in ("preadv", "pwritev", "fdatasync", "posix_fallocate")}


class AnyOrder(RuleBasedStateMachine):
    """Blocks of two sizes, in slabs of four and of one."""

    @initialize(max_open=st.sampled_from([0, 128]), numbers=SOME)
    def begin(self, max_open: int, numbers: list[int]) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name) / "kv"
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(slabs_module, "SLAB_BYTES", 4 * SLOT)
        self.patch.setattr(slabs_module, "_MAX_OPEN", max_open)
        self.mood = pytest.MonkeyPatch()
        self.now = 1000.0
        self.is_sound = self.is_size_known = True
        self.open(BLOCK_BYTES, 8, None)
        self.store(numbers)

    def open(self, block_bytes: int, slots: int, ttl: float | None) -> None:
        limit = INDEX_BYTES + slots * (SLOT + ROW_BYTES)
        self.tier: DiskTier = open_tier(
            self.folder, block_bytes=block_bytes, limit=limit, ttl=ttl, clock=lambda: self.now
        )
        self.blocks = BLOCKS[block_bytes]
        self.is_size_known = True
        self.look()

    def some(self, numbers: list[int]) -> list[Any]:
        return [self.blocks[number] for number in dict.fromkeys(n % len(self.blocks) for n in numbers)]

    @rule(numbers=SOME)
    def store(self, numbers: list[int]) -> None:
        self.now += 1
        store(self.tier, *self.some(numbers))

    @rule(numbers=SOME)
    def load(self, numbers: list[int]) -> None:
        self.now += 1
        contents = self.some(numbers)
        there = [content.key in self.tier for content in contents]
        for is_there, result in zip(there, load(self.tier, contents), strict=True):
            if self.is_sound:
                assert result in (Result.HIT, Result.FAILED) if is_there else result is Result.MISS

    @rule(numbers=SOME)
    def use(self, numbers: list[int]) -> None:
        """As an engine does."""
        self.load(numbers)
        missing = set(self.tier.touch([content.key for content in self.some(numbers)]))
        store(self.tier, *(content for content in self.some(numbers) if content.key in missing))

    @rule(numbers=SOME)
    def touch(self, numbers: list[int]) -> None:
        self.now += 1
        self.tier.touch([content.key for content in self.some(numbers)])

    @rule(numbers=SOME, pinned=st.booleans())
    def pin(self, numbers: list[int], pinned: bool) -> None:
        self.tier.folder.set_pinned([content.key for content in self.some(numbers)], pinned)

    @rule(numbers=SOME)
    def clear(self, numbers: list[int]) -> None:
        keys = {content.key for content in self.some(numbers)}
        try:
            self.tier.folder.clear(lambda stored: stored.key in keys)
        except OSError as error:
            assert "in no mood" in str(error)
        assert not any(key in self.tier for key in keys)

    @rule(seconds=st.sampled_from([1.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tier.folder.tidy()

    @rule()
    def verify(self) -> None:
        found = verify(self.tier.folder)
        assert not self.is_sound or found.num_damaged == 0

    @rule(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.3, 1.0]))
    def the_disk_is_moody(self, seed: int, share: float) -> None:
        rng = random.Random(seed)
        self.mood.undo()
        for name, call in CALLS.items():

            def moody(*given: Any, call: Any = call) -> Any:
                if rng.random() < share:
                    raise OSError(rng.choice([errno.EIO, errno.ENOSPC]), "in no mood")
                return call(*given)

            self.mood.setattr(os, name, moody)

    @rule(damage=st.sampled_from(TO_SLABS), seed=st.integers(0, 999))
    def damage_under_its_feet(self, damage: Damage, seed: int) -> None:
        damage(self.folder, random.Random(seed))
        self.is_sound = self.is_size_known = False

    @rule(
        block_bytes=st.sampled_from(sorted(BLOCKS)),
        slots=st.sampled_from([2, 8, 8, 40]),
        ttl=st.sampled_from([None, None, 60.0]),
        damage=st.none() | st.sampled_from(EXISTING),
        seed=st.integers(0, 999),
    )
    def reopen(self, block_bytes: int, slots: int, ttl: float | None, damage: Damage | None, seed: int) -> None:
        self.mood.undo()
        self.look()
        kept = {stored.key for stored in self.tier.folder.blocks()}
        pinned = {stored.key for stored in self.tier.folder.blocks() if stored.pinned}
        limit, num_bytes = self.tier.folder.limit, self.tier.folder.num_bytes
        self.tier.close()
        if damage is not None:
            damage(self.folder, random.Random(seed))
            self.is_sound = False
        self.open(block_bytes, max(slots, 3 * block_bytes // BLOCK_BYTES), ttl)
        if self.is_sound and ttl is None and (self.tier.folder.limit >= limit or self.tier.folder.limit >= num_bytes):
            assert {stored.key for stored in self.tier.folder.blocks()} == kept
            assert pinned == {stored.key for stored in self.tier.folder.blocks() if stored.pinned}

    @rule()
    def look(self) -> None:
        folder = self.tier.folder
        sizes = [path.stat().st_size for path in slabs(self.folder) if path.is_file()]
        assert folder.num_bytes <= folder.limit
        assert not self.is_size_known or sum(sizes) == sum(each.num_bytes for each in folder._slabs.values())
        if self.is_sound:
            assert folder.num_damaged == 0
        self.mood.undo()
        self.load(list(range(len(self.blocks))))
        check_slots(self.tier)

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.mood.undo()
            self.look()
            assert all(thread.is_alive() for thread in (self.tier._writer, *self.tier._readers))
            self.tier.close()
            self.patch.undo()
            self.place.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.soak
def test_any_order_for_long() -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(max_examples=2000, stateful_step_count=50, deadline=None))
