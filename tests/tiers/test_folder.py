"""TierFolder: the limit is kept, what goes is what was not used for longest, and what is there is adopted."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tier_blocks import (
    BLOCK_BYTES,
    BLOCK_SIZE,
    ROOMY,
    block,
    load,
    open_tier,
    origin,
    slabs,
    store,
)

from octavo.errors import ConfigError, TierInUseError
from octavo.tiers import slabs as slabs_module
from octavo.tiers.base import NO_TENANT, tenant_digest
from octavo.tiers.contents import Place, StoredBlock
from octavo.tiers.folder import TierFolder
from octavo.tiers.holding import holder_of
from octavo.tiers.index import INDEX_BYTES, ROW_BYTES
from octavo.tiers.record import MAGIC, slot_bytes

SLOT = slot_bytes(BLOCK_BYTES, BLOCK_SIZE)


def limit_for(slots: int) -> int:
    return INDEX_BYTES + slots * (SLOT + ROW_BYTES)


def hits(tier, contents) -> list[int]:
    return [index for index, result in enumerate(load(tier, contents)) if result.name == "HIT"]


def test_what_is_stored_is_there_in_the_next_process(tmp_path):
    blocks = [block(n) for n in range(20)]
    tier = open_tier(tmp_path / "kv")
    store(tier, *blocks)
    tier.close()
    again = open_tier(tmp_path / "kv")
    assert hits(again, blocks) == list(range(20))
    assert again.gauges().num_own_blocks == 20
    again.close()


def test_files_are_0600_in_a_0700_folder(tmp_path):
    tier = open_tier(tmp_path / "new" / "kv")
    store(tier, *(block(n) for n in range(3)))
    folder = tmp_path / "new" / "kv"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    tier.close()


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "kv").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        open_tier(tmp_path / "kv")


def test_a_folder_that_cannot_be_one_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used as a disk tier"):
        open_tier(tmp_path / "file")
    with pytest.raises(ConfigError, match="holds no block; give at least"):
        open_tier(tmp_path / "kv", limit=INDEX_BYTES + 100)
    with pytest.raises(ConfigError, match="for its index alone"):
        open_tier(tmp_path / "kv", limit=100)
    open_tier(tmp_path / "kv").close()


def test_the_byte_limit_is_exact_and_what_was_not_used_for_longest_goes(tmp_path):
    tier = open_tier(tmp_path / "kv", limit=limit_for(10) + SLOT - 1)
    blocks = [block(n) for n in range(14)]
    store(tier, *blocks[:10])
    assert tier.gauges().num_bytes == limit_for(10) and tier.stats().num_evicted == 0
    tier.touch([blocks[0].key, blocks[2].key])
    for each in blocks[10:]:
        store(tier, each)
    assert hits(tier, blocks) == [0, 2, *range(6, 14)]
    assert tier.stats().num_evicted == 4
    assert sum(path.stat().st_size for path in slabs(tmp_path / "kv")) == 10 * SLOT
    tier.close()


def test_all_files_together_never_exceed_the_limit(tmp_path):
    limit = limit_for(300)
    tier = open_tier(tmp_path / "kv", limit=limit)
    most = 0
    for start in range(0, 1200, 40):
        store(tier, *(block(n) for n in range(start, start + 40)))
        tier.touch([block(n).key for n in range(start)])
        tier.folder.tidy()
        most = max(most, sum(path.stat().st_size for path in (tmp_path / "kv").iterdir()))
    assert limit - INDEX_BYTES - 300 * ROW_BYTES <= most <= limit
    tier.close()


def test_a_smaller_limit_deletes_what_was_not_used_for_longest_and_a_larger_one_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", 2 * SLOT)
    now = [1000.0]
    tier = open_tier(tmp_path / "kv", clock=lambda: now[0])
    blocks = [block(n) for n in range(10)]
    for each in blocks:
        now[0] += 1
        store(tier, each)
    now[0] += 1
    tier.touch([blocks[0].key])
    tier.close()
    tier = open_tier(tmp_path / "kv", limit=limit_for(5), clock=lambda: now[0])
    assert hits(tier, blocks) == [0, 1, 8, 9] and tier.gauges().num_bytes <= limit_for(5)
    tier.close()
    tier = open_tier(tmp_path / "kv")
    assert hits(tier, blocks) == [0, 1, 8, 9]
    tier.close()


def test_blocks_of_other_sizes_stay_until_the_limit_needs_their_room(tmp_path, monkeypatch):
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", 4 * SLOT)
    large = [block(n, "large", of=origin("large")) for n in range(4)]
    tier = open_tier(tmp_path / "kv", block_bytes=3 * BLOCK_BYTES)
    store(tier, *large)
    tier.close()
    tier = open_tier(tmp_path / "kv", limit=limit_for(20))
    assert tier.gauges().num_blocks == 4 and tier.gauges().num_own_blocks == 0
    small = [block(n) for n in range(30)]
    store(tier, *small[:5])
    assert tier.gauges().num_blocks == 9
    store(tier, *small[5:])
    assert tier.gauges().num_bytes <= limit_for(20)
    assert tier.gauges().num_own_blocks == tier.gauges().num_blocks == 20
    tier.close()


def test_own_blocks_go_before_foreign_ones_that_were_used_later(tmp_path):
    now = [1000.0]
    tier = open_tier(tmp_path / "kv", clock=lambda: now[0])
    small = [block(n) for n in range(6)]
    store(tier, *small)
    tier.close()
    now[0] = 2000.0
    tier = open_tier(tmp_path / "kv", block_bytes=3 * BLOCK_BYTES, clock=lambda: now[0])
    large = block(0, "large")
    store(tier, large)
    limit = tier.gauges().num_bytes
    tier.close()
    now[0] = 3000.0
    tier = open_tier(tmp_path / "kv", limit=limit, clock=lambda: now[0])
    store(tier, block(6), block(7))
    assert large.key in tier and hits(tier, small) == [2, 3, 4, 5]
    tier.close()


def test_what_is_pinned_outlives_everything_and_stays_pinned(tmp_path):
    tier = open_tier(tmp_path / "kv", limit=limit_for(4), ttl=100.0)
    blocks = [block(n) for n in range(12)]
    store(tier, *blocks[:3])
    assert tier.folder.set_pinned([each.key for each in (*blocks[:2], blocks[9])], True) == 2
    for each in blocks[3:]:
        store(tier, each)
    assert hits(tier, blocks) == [0, 1, 10, 11]
    tier.close()
    tier = open_tier(tmp_path / "kv", limit=limit_for(4), ttl=0.001)
    time.sleep(0.01)
    tier.folder.tidy()
    assert hits(tier, blocks) == [0, 1] and tier.gauges().num_pinned == 2
    tier.folder.set_pinned([blocks[0].key], False)
    time.sleep(0.01)
    tier.folder.tidy()
    assert hits(tier, blocks) == [1]
    tier.close()


def test_where_all_is_pinned_nothing_more_is_written_and_nothing_fails(tmp_path):
    tier = open_tier(tmp_path / "kv", limit=limit_for(3))
    blocks = [block(n) for n in range(6)]
    store(tier, *blocks[:3])
    tier.folder.set_pinned([each.key for each in blocks], True)
    store(tier, *blocks[3:])
    assert hits(tier, blocks) == [0, 1, 2] and tier.gauges().num_queued == 0
    assert (tier.stats().num_dropped, tier.stats().num_failed) == (3, 0)
    tier.close()


def test_what_nobody_used_for_the_time_to_live_is_forgotten_and_its_slot_used_again(tmp_path):
    now = [1000.0]
    tier = open_tier(tmp_path / "kv", ttl=60.0, clock=lambda: now[0])
    blocks = [block(n) for n in range(4)]
    store(tier, *blocks[:3])
    now[0] += 59
    tier.touch([blocks[1].key])
    now[0] += 2
    tier.folder.tidy()
    assert [each.key in tier for each in blocks[:3]] == [False, True, False] and tier.stats().num_expired == 2
    size = tier.gauges().num_bytes
    store(tier, blocks[3])
    assert tier.gauges().num_bytes == size
    assert hits(tier, blocks) == [1, 3]
    tier.close()


def test_cleared_blocks_are_gone_from_the_files_too(tmp_path):
    tier = open_tier(tmp_path / "kv")
    alice, bob = ([block(n, name, of=origin(tenant=name.encode())) for n in range(3)] for name in ("alice", "bob"))
    store(tier, *alice, *bob)
    assert tier.folder.clear(lambda each: each.origin.tenant == tenant_digest(b"alice")) == 3
    assert hits(tier, [*alice, *bob]) == [3, 4, 5]
    tier.close()
    files = b"".join(path.read_bytes() for path in slabs(tmp_path / "kv"))
    assert files.count(tenant_digest(b"alice")) == 0 and files.count(tenant_digest(b"bob")) == 3
    (tmp_path / "kv" / "index.sqlite").unlink()
    tier = open_tier(tmp_path / "kv")
    assert hits(tier, [*alice, *bob]) == [3, 4, 5], "not even an index made anew finds them"
    assert tenant_digest(b"") == NO_TENANT
    tier.close()


@pytest.mark.parametrize("went", ["expired", "damaged", "unwritten"])
def test_clearing_overwrites_what_was_forgotten_before_too(tmp_path, went, monkeypatch):
    now = [1000.0]
    tier = open_tier(tmp_path / "kv", ttl=10, clock=lambda: now[0])
    blocks = [block(n) for n in range(3)]
    if went == "unwritten":
        monkeypatch.setattr(os, "fdatasync", failing)
    store(tier, *blocks)
    monkeypatch.undo()
    [slab] = slabs(tmp_path / "kv")
    if went == "expired":
        now[0] += 100
        tier.folder.tidy()
    elif went == "damaged":
        for stored in tier.folder.blocks():
            tier.folder.drop_damaged(stored, "somebody said so")
    assert not len(tier.folder) and slab.read_bytes().count(MAGIC) == 3
    assert tier.folder.clear() == 0
    assert not any(slab.read_bytes())
    store(tier, *blocks)
    assert hits(tier, blocks) == [0, 1, 2] and len(tier.folder) == 3
    tier.close()


def failing(*_: object) -> None:
    raise OSError(errno.EIO, "in no mood")


@pytest.mark.parametrize("how", ["missing", "garbage", "empty", "another version"])
def test_an_index_that_cannot_be_read_is_made_anew_from_the_slots(tmp_path, how):
    tier = open_tier(tmp_path / "kv")
    blocks = [block(n, group=n % 2) for n in range(20)]
    store(tier, *blocks)
    tier.close()
    path = tmp_path / "kv" / "index.sqlite"
    if how == "missing":
        path.unlink()
    elif how == "another version":
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 7")
        db.close()
    else:
        path.write_bytes(b"" if how == "empty" else os.urandom(9000))
    tier = open_tier(tmp_path / "kv")
    assert hits(tier, blocks) == list(range(20)) and tier.stats().num_damaged == 0
    tier.close()
    tier = open_tier(tmp_path / "kv")
    assert hits(tier, blocks) == list(range(20))
    tier.close()


def test_a_second_process_is_refused_and_told_who_has_the_folder(tmp_path):
    folder = TierFolder(tmp_path / "kv", limit=ROOMY)
    folder.announce({"url": "http://127.0.0.1:8000"})
    code = f"""
        from pathlib import Path
        from octavo.errors import TierInUseError
        from octavo.tiers.folder import TierFolder
        from octavo.tiers.holding import holder_of
        path = Path({str(tmp_path / "kv")!r})
        try:
            TierFolder(path, limit=2**30)
        except TierInUseError as error:
            print(error)
            print(holder_of(path))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    message, holder = done.stdout.splitlines()
    assert f"process {os.getpid()} uses" in message and "'url': 'http://127.0.0.1:8000'" in holder
    folder.close()
    assert holder_of(tmp_path / "kv") == {}
    with pytest.raises(ConfigError):
        TierFolder(tmp_path / "kv", limit=1)
    TierFolder(tmp_path / "kv", limit=ROOMY).close()


def test_the_same_process_is_refused_too_until_it_lets_go(tmp_path):
    folder = TierFolder(tmp_path / "kv", limit=ROOMY)
    with pytest.raises(TierInUseError):
        TierFolder(tmp_path / "kv", limit=ROOMY)
    folder.close()
    TierFolder(tmp_path / "kv", limit=ROOMY).close()


def test_a_process_that_lets_go_does_so_for_children_that_it_forked(tmp_path):
    folder = TierFolder(tmp_path / "kv", limit=ROOMY)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    folder.close()
    TierFolder(tmp_path / "kv", limit=ROOMY).close()
    os.close(writer)
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0


def test_closing_twice_is_harmless_and_whatever_an_opening_ends_with_lets_the_folder_go(tmp_path, monkeypatch):
    folder = TierFolder(tmp_path / "kv", limit=ROOMY)
    folder.close()
    other = TierFolder(tmp_path / "kv", limit=ROOMY)
    other.announce({})
    folder.close()
    assert holder_of(tmp_path / "kv") == {"pid": str(os.getpid())}
    other.close()
    before = open_files()
    for name in ("_adopt", "_shrink_to_limit"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(TierFolder, name, interrupted)
            TierFolder(tmp_path / "kv", limit=ROOMY)
    assert open_files() == before
    TierFolder(tmp_path / "kv", limit=ROOMY).close()


def open_files() -> list[str]:
    return sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists())


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_a_wrong_clock_wrote_down_expires_as_if_it_were_used_now(tmp_path):
    tier = open_tier(tmp_path / "kv", clock=lambda: 4e9)
    store(tier, block(0))
    tier.close()
    now = [1000.0]
    tier = open_tier(tmp_path / "kv", ttl=60.0, clock=lambda: now[0])
    store(tier, block(1))
    now[0] += 61
    tier.folder.tidy()
    assert len(tier.folder) == 0
    tier.close()


def test_parts_of_slots_count_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", 2 * SLOT)
    tier = open_tier(tmp_path / "kv")
    store(tier, *(block(n) for n in range(6)))
    tier.close()
    for path in slabs(tmp_path / "kv"):
        os.truncate(path, 2 * SLOT - 1)
    room = limit_for(5)
    tier = open_tier(tmp_path / "kv", limit=room)
    assert tier.gauges().num_blocks == 2, "three slots and almost three more are more than five"
    store(tier, *(block(n, "more") for n in range(9)))
    assert sum(path.stat().st_size for path in slabs(tmp_path / "kv")) <= 5 * SLOT
    tier.close()


def test_an_index_is_made_anew_again_where_the_process_died_over_it(tmp_path, monkeypatch):
    tier = open_tier(tmp_path / "kv")
    blocks = [block(n) for n in range(5)]
    store(tier, *blocks)
    tier.close()
    (tmp_path / "kv" / "index.sqlite").unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("octavo.tiers.adoption.read_header", interrupted)
        open_tier(tmp_path / "kv")
    tier = open_tier(tmp_path / "kv")
    assert hits(tier, blocks) == [0, 1, 2, 3, 4]
    tier.close()


@pytest.mark.parametrize("junk", [b"", b"no json", b"[1, 2]", json.dumps({"pid": 3}).encode()])
def test_whatever_stands_in_the_lock_file_is_no_harm(tmp_path, junk):
    TierFolder(tmp_path / "kv", limit=ROOMY).close()
    (tmp_path / "kv" / "lock").write_bytes(junk)
    assert holder_of(tmp_path / "kv") in ({}, {"pid": "3"})
    TierFolder(tmp_path / "kv", limit=ROOMY).close()


def test_ten_gigabytes_are_adopted_within_a_second(tmp_path):
    """Sparse files of 30,000 slots: what counts is the rows."""
    size, count = 90 * 4096, 30_000
    folder = TierFolder(tmp_path / "kv", limit=2**40)
    folder.close()
    per_slab = slabs_module.SLAB_BYTES // size
    for number in range(-(-count // per_slab)):
        path = tmp_path / "kv" / f"{size}-{number}.slab"
        path.touch(0o600)
        os.truncate(path, min(per_slab, count - number * per_slab) * size)
    folder = TierFolder(tmp_path / "kv", limit=2**40)
    whose = origin()
    folder._index.add(
        StoredBlock(block_key(n), Place(size, n), whose, block_key(n - 1).block_hash, 16, float(n))
        for n in range(count)
    )
    folder.close()
    began = time.process_time()
    folder = TierFolder(tmp_path / "kv", limit=2**40)
    took = time.process_time() - began
    assert len(folder) == count
    assert took < 1.0, f"{took:.2f} s of processor time"
    folder.close()


def block_key(number: int):
    from octavo.tiers.base import BlockKey

    return BlockKey(number.to_bytes(32, "big", signed=True), 0)
