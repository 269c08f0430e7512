"""SlotIndex: rows are durable when it says so, and whatever is no index is told apart."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tier_blocks import block, origin

from octavo.tiers.contents import Place, StoredBlock
from octavo.tiers.index import IndexDamagedError, SlotIndex, remove_index


def row(index: int, used: float = 0.0, pinned: bool = False, model: str = "model") -> StoredBlock:
    content = block(index, of=origin(model))
    return StoredBlock(
        content.key, Place(8192, index), content.origin, content.parent_hash, len(content.token_ids), used, pinned
    )


def test_rows_come_back_as_they_were_least_recently_used_first(tmp_path):
    index = SlotIndex(tmp_path / "index")
    rows = [row(0, 3.0), row(1, 1.0, pinned=True), row(2, 2.0, model="other")]
    index.add(rows)
    index.close()
    again = SlotIndex(tmp_path / "index")
    assert again.read() == [rows[1], rows[2], rows[0]]


def test_what_is_removed_or_updated_is_so_in_the_next_process(tmp_path):
    index = SlotIndex(tmp_path / "index")
    rows = [row(n, float(n)) for n in range(4)]
    index.add(rows)
    index.remove([rows[0].place, Place(1, 1)])
    rows[1].used, rows[1].pinned = 9.0, True
    index.update([rows[1], rows[0]])
    index.close()
    assert SlotIndex(tmp_path / "index").read() == [rows[2], rows[3], rows[1]]


def test_a_slot_has_one_row(tmp_path):
    index = SlotIndex(tmp_path / "index")
    index.add([row(0)])
    later = StoredBlock(**{**{f: getattr(row(1), f) for f in StoredBlock.__slots__}, "place": row(0).place})
    index.add([later])
    assert index.read() == [later]


def test_an_update_leaves_a_slot_alone_that_is_another_block_s_by_now(tmp_path):
    index = SlotIndex(tmp_path / "index")
    index.add([row(0, used=1.0)])
    stale = row(5, used=99.0)
    stale.place = row(0).place
    index.update([stale])
    assert index.read() == [row(0, used=1.0)]


@pytest.mark.parametrize("how", ["garbage", "a page", "cut off", "other version", "other tables"])
def test_what_is_no_index_of_ours_is_said_to_be_damaged(tmp_path, how):
    path = tmp_path / "index"
    index = SlotIndex(path)
    index.add([row(n) for n in range(200)])
    index.close()
    data = bytearray(path.read_bytes())
    if how == "garbage":
        path.write_bytes(b"no database" * 1000)
    elif how == "a page":
        data[8192 : 3 * 8192] = b"\xff" * 2 * 8192
        path.write_bytes(data)
    elif how == "cut off":
        path.write_bytes(data[: len(data) // 2 + 100])
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99" if how == "other version" else "DROP TABLE slots")
        db.close()
    with pytest.raises(IndexDamagedError):
        SlotIndex(path).read()
    remove_index(path)
    assert SlotIndex(path).read() == []


def test_a_change_that_fails_is_an_os_error_and_changes_nothing(tmp_path):
    index = SlotIndex(tmp_path / "index")
    index.add([row(0)])
    index._db.execute("CREATE TRIGGER no BEFORE DELETE ON slots BEGIN SELECT RAISE(ABORT, 'no room'); END")
    with pytest.raises(OSError, match="no room"):
        index.remove([row(0).place])
    assert index.read() == [row(0)]


def test_damage_that_shows_only_in_a_change_costs_nothing(tmp_path):
    path, rows = tmp_path / "index", [row(n) for n in range(5)]
    index = SlotIndex(path)
    index.add(rows)
    index.close()
    db = sqlite3.connect(path)
    [(page,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'slots'")
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096 + 1)  # where in the page there is room
        file.write(b"\xff\xff")
    index = SlotIndex(path, lambda: rows)
    assert index.read() == rows
    index.remove([rows[0].place])
    index.add([row(5, model="another model")])
    index.close()
    assert SlotIndex(path).read() == [*rows[1:], row(5, model="another model")]


def test_no_file_of_it_is_mapped_or_readable_by_others(tmp_path):
    index = SlotIndex(tmp_path / "index")
    index.add([row(n) for n in range(50)])
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path) not in maps
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert not (tmp_path / "index-shm").exists()


def test_an_index_that_a_process_died_over_before_it_was_filled_is_made_anew(tmp_path):
    def dies():
        yield row(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SlotIndex(tmp_path / "index", dies)
    with pytest.raises(IndexDamagedError, match="never filled"):
        SlotIndex(tmp_path / "index")
    remove_index(tmp_path / "index")
    assert SlotIndex(tmp_path / "index", lambda: [row(0), row(1)]).read() == [row(0), row(1)]


def test_a_wrong_owner_in_one_row_is_nobody_elses(tmp_path):
    """As a damaged header may say when an index is made anew from them."""
    index = SlotIndex(tmp_path / "index")
    rows = [row(0), row(1)]
    rows[0].origin = replace(rows[0].origin, tenant=b"\xff" * 32)
    index.add(rows)
    index.close()
    assert SlotIndex(tmp_path / "index").read() == rows


def test_an_index_that_is_damaged_however_often_it_is_made_anew_is_an_os_error(tmp_path, monkeypatch):
    index = SlotIndex(tmp_path / "index")
    index.add([row(0)])
    opened = sqlite3.connect

    def damaged(*given, **options):
        (tmp_path / "index").write_bytes(b"no database" * 1000)
        return opened(*given, **options)

    monkeypatch.setattr(sqlite3, "connect", damaged)
    index._db.close()
    with pytest.raises(OSError, match="cannot be changed"):
        index.add([row(1)])
    monkeypatch.undo()
    index.add([row(1)])
    index.close()
    assert SlotIndex(tmp_path / "index").read() == [row(1)]
