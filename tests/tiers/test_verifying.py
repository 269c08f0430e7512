"""verify: everything is read; what is proved damaged goes, and nothing else does."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tier_blocks import ROOMY, block, load, open_tier, slabs, store

from octavo.tiers.base import Result
from octavo.tiers.folder import TierFolder
from octavo.tiers.record import RecordError
from octavo.tiers.verifying import Verified, verify

BLOCKS = [block(n) for n in range(12)]
VERSION_AT = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tier = open_tier(tmp_path / "kv")
    store(tier, *BLOCKS)
    tier.close()
    return tmp_path / "kv"


def verified(folder: Path) -> Verified:
    opened = TierFolder(folder, limit=ROOMY)
    try:
        return verify(opened)
    finally:
        opened.close()


def change(folder: Path, offset: int, data: bytes) -> None:
    with slabs(folder)[0].open("r+b") as file:
        file.seek(offset)
        file.write(data)


def counts(found: Verified) -> tuple[int, int, int, int]:
    return found.num_ok, found.num_damaged, found.num_foreign, found.num_unreadable


def test_what_is_sound_stays_as_it_is(folder: Path):
    used = []
    for _ in range(2):
        opened = TierFolder(folder, limit=ROOMY)
        found = verify(opened)
        assert counts(found) == (12, 0, 0, 0) and found.num_bytes == 12 * 8192
        used.append({each.key: each.used for each in opened.blocks()})
        opened.close()
    assert used[0] == used[1]


@pytest.mark.parametrize("offset", [0, 20, 100, 8192 - 4096, 300])
def test_a_bit_that_is_wrong_anywhere_in_a_record_is_found_and_the_block_goes(folder: Path, offset: int):
    slot = 3 * 8192 + offset
    change(folder, slot, bytes([slabs(folder)[0].read_bytes()[slot] ^ 4]))
    assert counts(verified(folder)) == (11, 1, 0, 0)
    assert counts(verified(folder)) == (11, 0, 0, 0)
    tier = open_tier(folder)
    results = load(tier, BLOCKS)
    tier.close()
    assert results.count(Result.HIT) == 11 and results.count(Result.MISS) == 1


def test_sound_records_that_changed_places_are_damage(folder: Path):
    data = slabs(folder)[0].read_bytes()
    change(folder, 0, data[8192 : 2 * 8192] + data[:8192])
    assert counts(verified(folder)) == (10, 2, 0, 0)


def test_records_of_another_version_are_foreign_and_stay(folder: Path):
    change(folder, 8192 + VERSION_AT, struct.pack("<I", 77))
    assert counts(verified(folder)) == (11, 0, 1, 0)
    assert counts(verified(folder)) == (11, 0, 1, 0)


def test_what_the_disk_will_not_give_stays(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(self, each):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(TierFolder, "read_slot", failing)
        assert counts(verified(folder)) == (0, 0, 0, 12)
    assert counts(verified(folder)) == (12, 0, 0, 0)


def test_what_became_another_block_while_it_was_read_is_not_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch):
    opened = TierFolder(folder, limit=ROOMY)

    def replaced(self, each):
        self.clear(lambda other: other is each)
        raise RecordError("half of it is another block's")

    monkeypatch.setattr(TierFolder, "read_slot", replaced)
    assert counts(verify(opened)) == (0, 0, 0, 0) and opened.num_damaged == 0
    opened.close()


def test_progress_is_in_bytes_and_may_end_it(folder: Path):
    opened = TierFolder(folder, limit=ROOMY)
    told: list[tuple[int, int]] = []
    verify(opened, lambda done, total: told.append((done, total)))
    assert told == [(n * 8192, 12 * 8192) for n in range(13)]

    class EnoughError(Exception):
        pass

    def enough(done: int, total: int) -> None:
        if done > 2 * 8192:
            raise EnoughError

    with pytest.raises(EnoughError):
        verify(opened, enough)
    opened.close()
