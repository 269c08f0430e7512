"""Slabs: slots in files, whole or not there."""

from __future__ import annotations

import os
import stat

import pytest

from octavo.tiers import slabs as module
from octavo.tiers.record import RecordError
from octavo.tiers.slabs import Slabs, slot_sizes

SIZE = 4096


@pytest.fixture
def small(monkeypatch):
    """Three slots a file."""
    monkeypatch.setattr(module, "SLAB_BYTES", 3 * SIZE)


def read(slabs: Slabs, slot: int) -> bytes:
    header, data = bytearray(8), bytearray(100)
    slabs.read(slot, header, memoryview(data))
    return bytes(header + data)


def write(slabs: Slabs, slot: int, fill: int) -> bytes:
    slabs.write(slot, bytearray([fill]) * 8, memoryview(bytes([fill + 1]) * 100))
    return bytes([fill]) * 8 + bytes([fill + 1]) * 100


def test_slots_are_added_one_by_one_and_keep_what_is_written(small, tmp_path):
    slabs = Slabs(tmp_path, SIZE)
    written = {}
    for index in range(7):
        slot = slabs.grow()
        assert slot == index
        written[slot] = write(slabs, slot, index)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == slabs.num_bytes == (index + 1) * SIZE
    slabs.sync()
    slabs.close()
    again = Slabs(tmp_path, SIZE)
    assert again.slots() == list(range(7))
    assert {slot: read(again, slot) for slot in again.slots()} == written
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{SIZE}-{n}.slab" for n in range(3)]
    assert slot_sizes(tmp_path) == [SIZE]


def test_a_file_that_goes_takes_its_slots_and_its_number_is_used_again(small, tmp_path):
    slabs = Slabs(tmp_path, SIZE)
    for index in range(7):
        write(slabs, slabs.grow(), index)
    slabs.remove_slab(1)
    assert slabs.slots() == [0, 1, 2, 6] and 4 not in slabs and 6 in slabs
    assert [slabs.grow() for _ in range(3)] == [7, 8, 3]
    assert Slabs(tmp_path, SIZE).slots() == [0, 1, 2, 3, 6, 7, 8]


def test_what_a_shortened_file_has_lost_is_damage_and_what_it_has_is_read(small, tmp_path):
    slabs = Slabs(tmp_path, SIZE)
    written = [write(slabs, slabs.grow(), index) for index in range(3)]
    os.truncate(tmp_path / f"{SIZE}-0.slab", SIZE + 50)
    assert read(slabs, 0) == written[0]
    for slot in (1, 2):
        with pytest.raises(RecordError, match="are there"):
            read(slabs, slot)
    assert Slabs(tmp_path, SIZE).slots() == [0]


def test_nothing_is_left_of_what_was_erased(small, tmp_path):
    slabs = Slabs(tmp_path, SIZE)
    for index in range(2):
        write(slabs, slabs.grow(), 40 + index)
    slabs.erase(0)
    data = (tmp_path / f"{SIZE}-0.slab").read_bytes()
    assert data[:SIZE] == bytes(SIZE) and data[SIZE] == 41


def test_files_are_their_owners_alone_and_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"{SIZE}-x.slab").write_text("mine, too")
    slabs = Slabs(tmp_path, SIZE)
    slabs.grow()
    assert stat.S_IMODE((tmp_path / f"{SIZE}-0.slab").stat().st_mode) == 0o600
    assert slot_sizes(tmp_path) == [SIZE]


def test_where_no_file_can_be_made_nothing_is_added(tmp_path):
    (tmp_path / "gone").mkdir()
    slabs = Slabs(tmp_path / "gone", SIZE)
    (tmp_path / "gone").rmdir()
    with pytest.raises(OSError, match="No such file"):
        slabs.grow()
    assert slabs.num_slots == 0
