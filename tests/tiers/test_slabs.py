"""Slabs: slots in files, whole or not there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

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


def test_few_files_are_kept_open_however_many_there_are(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_OPEN", 4)
    before = len(list(Path("/proc/self/fd").iterdir()))
    slabs = Slabs(tmp_path, SIZE)
    written = {}
    for index in range(60):
        slot = slabs.grow()
        written[slot] = write(slabs, slot, index)
    slabs.sync()
    assert {slot: read(slabs, slot) for slot in slabs.slots()} == written
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 4 + 1, "and the folder"
    slabs.remove_slab(0)
    slabs.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_is_gone_before_it_was_opened_is_damage_and_is_made_again_by_what_is_written(small, tmp_path):
    slabs = Slabs(tmp_path, SIZE)
    for index in range(3):
        write(slabs, slabs.grow(), index)
    slabs.close()
    slabs = Slabs(tmp_path, SIZE)
    (tmp_path / f"{SIZE}-0.slab").unlink()
    with pytest.raises(RecordError, match="gone"):
        read(slabs, 1)
    assert slabs.is_blank(1)
    written = write(slabs, 1, 77)
    slabs.sync()
    assert read(slabs, 1) == written and slabs.is_blank(0)
    assert stat.S_IMODE((tmp_path / f"{SIZE}-0.slab").stat().st_mode) == 0o600


def test_a_folder_that_took_the_name_of_ours_is_left_alone(small, tmp_path):
    (tmp_path / "kv").mkdir()
    slabs = Slabs(tmp_path / "kv", SIZE)
    written = write(slabs, slabs.grow(), 1)
    (tmp_path / "kv").rename(tmp_path / "moved")
    (tmp_path / "kv").mkdir()
    slabs.grow()
    slabs.sync()
    assert read(slabs, 0) == written
    assert not list((tmp_path / "kv").iterdir())


def test_bytes_in_no_slot_count_until_they_are_part_of_one(small, tmp_path):
    slabs = Slabs(tmp_path, SIZE)
    for _ in range(5):
        slabs.grow()
    os.truncate(tmp_path / f"{SIZE}-0.slab", 3 * SIZE + 999)
    os.truncate(tmp_path / f"{SIZE}-1.slab", SIZE + 77)
    again = Slabs(tmp_path, SIZE)
    assert (again.num_slots, again.num_bytes) == (4, 4 * SIZE + 999 + 77)
    again.grow()
    assert again.num_bytes == 5 * SIZE + 999 == sum(path.stat().st_size for path in tmp_path.iterdir())
    again.remove_slab(0)
    assert again.num_bytes == 2 * SIZE


@pytest.mark.parametrize("name", ["0-0.slab", f"0{SIZE}-0.slab", f"{SIZE}-00.slab", "4097-0.slab", "1-0.slab"])
def test_names_that_no_slab_has_are_none(tmp_path, name):
    (tmp_path / name).write_bytes(bytes(3 * SIZE))
    assert [size for size in slot_sizes(tmp_path) if Slabs(tmp_path, size).num_slots] == []


@pytest.fixture
def slow_disk(monkeypatch):
    """Waits in the middle of the first sync until it is told to go on; says when it is there, and how many began."""
    under_way, go_on, began = threading.Event(), threading.Event(), []
    fdatasync = os.fdatasync

    def slow(file: int) -> None:
        began.append(file)
        under_way.set()
        assert go_on.wait(30)
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    return under_way, go_on, began


def test_who_syncs_while_another_does_waits_for_that(small, tmp_path, slow_disk):
    """It may be for bytes of both."""
    under_way, go_on, _ = slow_disk
    slabs = Slabs(tmp_path, SIZE)
    write(slabs, slabs.grow(), 1)
    threads = [threading.Thread(target=slabs.sync) for _ in range(2)]
    threads[0].start()
    assert under_way.wait(30)
    threads[1].start()
    threads[1].join(0.05)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(30)


def test_what_is_written_in_the_middle_of_a_sync_needs_another_one(small, tmp_path, slow_disk):
    under_way, go_on, began = slow_disk
    slabs = Slabs(tmp_path, SIZE)
    slots = [slabs.grow(), slabs.grow()]
    other = threading.Thread(target=slabs.sync)
    other.start()
    assert under_way.wait(30)
    write(slabs, slots[1], 2)
    go_on.set()
    other.join(30)
    before = len(began)
    slabs.sync()
    assert (before, len(began)) in ((1, 2), (2, 2)), "by this one or, as it was still at it, by the other"
    slabs.sync()
    assert len(began) == 2


def test_what_could_not_be_made_durable_is_tried_again(small, tmp_path, monkeypatch):
    slabs = Slabs(tmp_path, SIZE)
    write(slabs, slabs.grow(), 1)
    fdatasync, tried = os.fdatasync, []

    def broken(file: int) -> None:
        tried.append(file)
        if len(tried) == 1:
            raise OSError(5, "in no mood")
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="in no mood"):
        slabs.sync()
    slabs.sync()
    slabs.sync()
    assert len(tried) == 2


def test_a_file_that_is_gone_is_nothing_to_wait_for(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_OPEN", 0)
    slabs = Slabs(tmp_path, SIZE)
    write(slabs, slabs.grow(), 1)
    (tmp_path / f"{SIZE}-0.slab").unlink()
    slabs.sync()
    with pytest.raises(RecordError, match="gone"):
        read(slabs, 0)
