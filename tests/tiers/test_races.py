"""What several threads do at once to one folder: each of these meets at the worst moment, made to happen."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tier_blocks import BLOCK_BYTES, BLOCK_SIZE, block, check_slots, load, open_tier, origin, store

from octavo.tiers.base import Result
from octavo.tiers.disk import DiskTier
from octavo.tiers.index import INDEX_BYTES, ROW_BYTES
from octavo.tiers.record import slot_bytes

SLOT = slot_bytes(BLOCK_BYTES, BLOCK_SIZE)
BLOCKS = [block(n) for n in range(8)]


def limit_for(slots: int) -> int:
    return INDEX_BYTES + slots * (SLOT + ROW_BYTES)


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    """Full, with four blocks."""
    opened = open_tier(tmp_path / "kv", limit=limit_for(4))
    store(opened, *BLOCKS[:4])
    return opened


def meanwhile(
    owner: Any, name: str, act: Callable[[], object], when: Callable[..., bool] = lambda *_: True
) -> list[threading.Thread]:
    """When ``owner.name`` is called for the first time, another thread begins to act; where it does not wait for
    the caller, it is done before the call goes on.
    """
    works, threads = getattr(owner, name), []

    def interrupted(*given: Any) -> Any:
        if not threads and when(*given):
            threads.append(threading.Thread(target=act))
            threads[0].start()
            threads[0].join(0.2)
        return works(*given)

    setattr(owner, name, interrupted)
    return threads


def test_two_that_tidy_at_once_free_no_slot_that_was_taken_since(tier):
    folder = tier.folder
    [victim] = [each for each in folder.blocks() if each.key == BLOCKS[0].key]
    folder.drop_damaged(victim, "as if")
    with folder._filing:
        other = threading.Thread(target=folder.tidy)
        other.start()
        other.join(0.1)
        folder.tidy()
        places = folder.take_places(SLOT, 1)
        assert places == [victim.place]
    other.join(30)
    folder._index.read()
    assert victim.place.slot not in folder._free[SLOT], "it would be handed out twice"
    folder.give_back(places)
    check_slots(tier)
    tier.close()


def test_a_pin_outlives_a_tidy_that_had_begun(tier, tmp_path):
    keys = [each.key for each in BLOCKS[:4]]
    tier.touch(keys)
    threads = meanwhile(
        tier.folder._index,
        "_change",
        lambda: tier.folder.set_pinned(keys, True),
        when=lambda statement, _: statement.startswith("UPDATE"),
    )
    tier.folder.tidy()
    threads[0].join(30)
    tier.close()
    tier = open_tier(tmp_path / "kv", limit=limit_for(4))
    assert tier.gauges().num_pinned == 4
    tier.close()


def test_a_block_that_is_dropped_while_it_is_evicted_leaves_one_slot(tier):
    folder = tier.folder
    [victim] = [each for each in folder.blocks() if each.key == BLOCKS[0].key]
    meanwhile(folder._index, "remove", lambda: folder.drop_damaged(victim, "as if"))
    places = folder.take_places(SLOT, 2)
    assert victim.place not in places and len(places) == 1
    folder.tidy()
    assert folder.take_places(SLOT, 1) == [victim.place]
    folder.give_back([*places, victim.place])
    check_slots(tier)
    tier.close()


def test_a_block_that_is_cleared_while_it_is_evicted_leaves_one_slot(tier):
    folder = tier.folder
    threads = meanwhile(folder._index, "remove", lambda: folder.clear(lambda each: each.key == BLOCKS[0].key))
    places = folder.take_places(SLOT, 1)
    threads[0].join(30)
    folder.give_back(places)
    check_slots(tier)
    assert [each.key in tier for each in BLOCKS[:4]] == [False, True, True, True]
    tier.close()


def test_what_is_pinned_while_room_is_made_is_either_gone_or_kept(tier):
    folder, pinned = tier.folder, []
    threads = meanwhile(folder._index, "remove", lambda: pinned.append(folder.set_pinned([BLOCKS[0].key], True)))
    places = folder.take_places(SLOT, 1)
    threads[0].join(30)
    assert pinned == [int(BLOCKS[0].key in tier)]
    folder.give_back(places)
    check_slots(tier)
    tier.close()


def test_what_is_pinned_while_its_slab_is_deleted_is_said_to_be_gone(tmp_path):
    large, foreign = open_tier(tmp_path / "kv", block_bytes=3 * BLOCK_BYTES), block(0, "large", of=origin("large"))
    store(large, foreign)
    large.close()
    tier, pinned = open_tier(tmp_path / "kv", limit=limit_for(4)), []
    threads = meanwhile(tier.folder, "_remove_slab", lambda: pinned.append(tier.folder.set_pinned([foreign.key], True)))
    store(tier, *BLOCKS[:4])
    threads[0].join(30)
    assert foreign.key not in tier and pinned == [0]
    check_slots(tier)
    tier.close()


def test_an_index_that_cannot_be_changed_costs_no_block(tier):
    works = tier.folder._index.remove

    def full(places: Any) -> None:
        if list(places):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tier.folder._index.remove = full  # type: ignore[method-assign]
    assert store(tier, *BLOCKS[4:]) == BLOCKS[4:]
    assert (tier.stats().num_failed, tier.stats().num_evicted) == (4, 0)
    assert load(tier, BLOCKS) == [Result.HIT] * 4 + [Result.MISS] * 4
    tier.folder._index.remove = works  # type: ignore[method-assign]
    tier.touch([each.key for each in BLOCKS[:4]])
    store(tier, BLOCKS[4])
    assert load(tier, BLOCKS) == [Result.MISS] + [Result.HIT] * 4 + [Result.MISS] * 3
    check_slots(tier)
    tier.close()


def test_a_slab_that_cannot_be_deleted_holds_nothing_and_its_room_stays_counted(tmp_path, monkeypatch):
    large = open_tier(tmp_path / "kv", block_bytes=3 * BLOCK_BYTES)
    store(large, block(0, "large", of=origin("large")))
    large.close()
    limit = limit_for(4)
    tier = open_tier(tmp_path / "kv", limit=limit)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        for each in BLOCKS:
            store(tier, each)
    assert tier.gauges().num_bytes <= limit and tier.stats().num_failed == 1
    assert sum(path.stat().st_size for path in (tmp_path / "kv").glob("*.slab")) <= limit - INDEX_BYTES
    check_slots(tier)
    tier.close()
    tier = open_tier(tmp_path / "kv", limit=limit)
    store(tier, *BLOCKS)
    assert tier.gauges().num_own_blocks == 4
    tier.close()
