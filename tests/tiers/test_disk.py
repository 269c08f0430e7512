"""DiskTier: a hit has the bytes that were stored, or it is none, whatever becomes of the files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tier_blocks import BLOCK_BYTES, BLOCK_SIZE, block, check_slots, data_of, load, open_tier, origin, slabs, store

from octavo.tiers.base import Result
from octavo.tiers.disk import DiskTier
from octavo.tiers.record import header_bytes, slot_bytes

SLOT, HEADER = slot_bytes(BLOCK_BYTES, BLOCK_SIZE), header_bytes(BLOCK_SIZE)
BLOCKS = [block(n) for n in range(12)]
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With twelve blocks in it."""
    tier = open_tier(tmp_path / "kv")
    store(tier, *BLOCKS)
    tier.close()
    return tmp_path / "kv"


def names(results: list[Result]) -> list[str]:
    return [result.name for result in results]


def place_in_file(folder: Path, index: int) -> tuple[Path, int]:
    [slab] = slabs(folder)
    at = slab.read_bytes().index(BLOCKS[index].key.block_hash)
    return slab, at // SLOT * SLOT


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 32, 70, 130, 165, 260, HEADER - 16, HEADER, HEADER + BLOCK_BYTES - 1])
def test_a_flipped_bit_anywhere_is_a_miss_counted_once_and_nobody_elses(folder, at):
    slab, start = place_in_file(folder, 5)
    data = bytearray(slab.read_bytes())
    data[start + at] ^= 16
    slab.write_bytes(data)
    tier = open_tier(folder)
    assert names(load(tier, BLOCKS)) == ["HIT"] * 5 + ["MISS"] + ["HIT"] * 6
    foreign = 8 <= at < 12
    assert tier.stats().num_damaged == (0 if foreign else 1)
    assert names(load(tier, [BLOCKS[5]])) == ["MISS"] and tier.stats().num_damaged == (0 if foreign else 1)
    tier.close()
    tier = open_tier(folder)
    assert (BLOCKS[5].key in tier) == foreign, "what is damaged is gone for good, what is foreign is kept"
    tier.close()


def test_a_slot_that_was_damaged_is_written_anew(folder):
    slab, start = place_in_file(folder, 5)
    overwrite(slab, start + HEADER + 9, b"damage")
    tier = open_tier(folder)
    load(tier, BLOCKS)
    size = tier.gauges().num_bytes
    tier.folder.tidy()
    store(tier, BLOCKS[5])
    assert names(load(tier, BLOCKS)) == ["HIT"] * 12 and tier.gauges().num_bytes == size
    tier.close()


def test_a_record_in_the_place_of_another_is_none(folder):
    slab, third = place_in_file(folder, 3)
    _, fourth = place_in_file(folder, 4)
    data = slab.read_bytes()
    overwrite(slab, third, data[fourth : fourth + SLOT])
    tier = open_tier(folder)
    assert names(load(tier, BLOCKS[3:5])) == ["MISS", "HIT"] and tier.stats().num_damaged == 1
    tier.close()


@pytest.mark.parametrize("running", [False, True])
def test_a_file_that_is_cut_off_costs_what_was_behind(folder, running):
    tier = open_tier(folder) if running else None
    [slab] = slabs(folder)
    os.truncate(slab, 4 * SLOT + 1000)
    tier = tier or open_tier(folder)
    results = load(tier, BLOCKS)
    assert results.count(Result.HIT) == 4 and results.count(Result.MISS) == 8
    store(tier, *BLOCKS)
    tier.folder.tidy()
    store(tier, *BLOCKS)
    assert names(load(tier, BLOCKS)) == ["HIT"] * 12
    tier.close()


@pytest.mark.parametrize("running", [False, True])
def test_files_that_were_deleted_are_misses_and_the_next_blocks_have_room(folder, running):
    tier = open_tier(folder) if running else None
    for slab in slabs(folder):
        slab.unlink()
    tier = tier or open_tier(folder)
    load(tier, BLOCKS)
    more = [block(n, "more") for n in range(5)]
    store(tier, *more)
    assert names(load(tier, more)) == ["HIT"] * 5
    tier.close()
    tier = open_tier(folder)
    load(tier, [*BLOCKS, *more])
    store(tier, *BLOCKS)
    assert names(load(tier, BLOCKS)) == ["HIT"] * 12
    tier.close()


def test_what_cannot_be_read_just_now_is_there_later(folder, monkeypatch):
    tier = open_tier(folder)
    preadv, broken = os.preadv, [True]

    def in_no_mood(*args: Any) -> int:
        if broken[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(*args)

    monkeypatch.setattr(os, "preadv", in_no_mood)
    assert names(load(tier, BLOCKS)) == ["FAILED"] * 12
    assert (tier.stats().num_failed, tier.stats().num_damaged) == (12, 0)
    broken[0] = False
    assert names(load(tier, BLOCKS)) == ["HIT"] * 12
    tier.close()


def test_what_nobody_expected_fails_one_block_and_the_threads_go_on(folder, monkeypatch):
    tier = open_tier(folder)
    monkeypatch.setattr(tier.folder, "read", lambda *_: 1 // 0)
    monkeypatch.setattr(tier.folder, "write", lambda *_: 1 // 0)
    assert names(load(tier, BLOCKS)) == ["FAILED"] * 12
    store(tier, block(50))
    assert (tier.stats().num_failed, tier.stats().num_damaged) == (13, 0)
    monkeypatch.undo()
    store(tier, block(50))
    assert names(load(tier, [*BLOCKS, block(50)])) == ["HIT"] * 13
    tier.close()


STEPS: dict[str, tuple[str, str]] = {
    "the index is asked to forget": ("_index", "remove"),
    "the slot is written": ("_slabs", "write"),
    "it is made durable": ("_slabs", "sync"),
    "the index is told": ("_index", "add"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("reused", [False, True])
def test_whichever_step_of_a_write_fails_no_row_is_without_its_bytes(tmp_path, step, reused):
    """What a process that is killed there leaves behind is the same."""
    limit = {"limit": 2 * 2**20 + 12 * (SLOT + 512)} if reused else {}
    tier = open_tier(tmp_path / "kv", **limit)
    store(tier, *BLOCKS)
    where, name = STEPS[step]
    target: Any = tier.folder._index if where == "_index" else tier.folder._slabs[SLOT]

    def fail(*given: Any) -> None:
        if given and not given[0] and step.startswith("the index"):
            return  # there is nothing to change
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    works = getattr(target, name)
    setattr(target, name, fail)
    store(tier, block(20), block(21))
    setattr(target, name, works)
    untouched = not reused and step == "the index is asked to forget"
    assert tier.stats().num_failed == (0 if untouched else 2) and tier.stats().num_damaged == 0
    fresh = [block(20), block(21)]
    assert names(load(tier, fresh)) == (["HIT"] * 2 if untouched else ["MISS"] * 2)
    before = load(tier, BLOCKS)
    tier.close()
    tier = open_tier(tmp_path / "kv", **limit)
    after = load(tier, BLOCKS)
    assert after.count(Result.HIT) >= before.count(Result.HIT) and tier.stats().num_damaged == 0
    store(tier, *fresh)
    assert names(load(tier, fresh)) == ["HIT"] * 2
    tier.close()


def test_a_full_queue_drops_and_never_waits(tmp_path):
    tier = open_tier(tmp_path / "kv", queue_bytes=3 * BLOCK_BYTES)
    gate = threading.Event()
    write: Callable[..., int] = tier._write

    def held(batch: Any) -> int:
        assert gate.wait(30)
        return write(batch)

    tier._write = held  # type: ignore[method-assign]
    prepared = [tier.prepare_store(each) for each in BLOCKS[:5]]
    assert [each is not None for each in prepared] == [True, True, True, False, False]
    assert tier.stats().num_dropped == 2
    assert tier.prepare_store(BLOCKS[0]) is None and tier.stats().num_dropped == 2, "it is on its way"
    assert tier.touch([each.key for each in BLOCKS[:5]]) == [each.key for each in BLOCKS[3:5]]
    for each, content in zip(prepared[:3], BLOCKS, strict=False):
        assert each is not None
        each.memory[:] = data_of(content)
        tier.complete_store(each)
    gate.set()
    tier.flush()
    assert names(load(tier, BLOCKS[:5])) == ["HIT"] * 3 + ["MISS"] * 2
    assert store(tier, *BLOCKS[:5]) == BLOCKS[3:5]
    tier.close()


def test_a_flush_waits_for_what_was_there_and_not_for_what_comes(tmp_path):
    tier = open_tier(tmp_path / "kv")
    stop, count = threading.Event(), [0]

    def go_on() -> None:
        while not stop.is_set():
            content = block(count[0], "stream")
            prepared = tier.prepare_store(content)
            if prepared is not None:
                prepared.memory[:] = data_of(content)
                tier.complete_store(prepared)
                count[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(3):
            content = block(number, "mine")
            prepared = tier.prepare_store(content)
            while prepared is None:
                prepared = tier.prepare_store(content)
            prepared.memory[:] = data_of(content)
            tier.complete_store(prepared)
            began = time.monotonic()
            tier.flush()
            assert content.key in tier
            assert time.monotonic() - began < 20
    finally:
        stop.set()
        thread.join()
    tier.close()


def test_closing_writes_what_is_queued_and_twice_is_harmless(tmp_path):
    tier = open_tier(tmp_path / "kv")
    for content in BLOCKS:
        prepared = tier.prepare_store(content)
        assert prepared is not None
        prepared.memory[:] = data_of(content)
        tier.complete_store(prepared)
    tier.close()
    tier.close()
    assert tier.prepare_store(block(99)) is None
    done = threading.Event()
    late = tier.prepare_load([(BLOCKS[0], memoryview(bytearray(BLOCK_BYTES)))], done.set)
    assert done.is_set() and tier.complete_load(late) == [Result.FAILED]
    tier = open_tier(tmp_path / "kv")
    assert names(load(tier, BLOCKS)) == ["HIT"] * 12
    tier.close()


def test_what_is_cancelled_is_told_and_not_read(folder):
    tier = open_tier(folder)
    reading, gate = threading.Event(), threading.Event()
    read: Any = tier.folder.read

    def held(*args: Any) -> Any:
        reading.set()
        assert gate.wait(30)
        return read(*args)

    tier.folder.read = held  # type: ignore[method-assign]
    done = threading.Event()
    under_way = tier.prepare_load([(each, memoryview(bytearray(BLOCK_BYTES))) for each in BLOCKS], done.set)
    assert reading.wait(30)
    assert Result.PENDING in tier.complete_load(under_way)
    under_way.cancel()
    gate.set()
    assert done.wait(30)
    results = tier.complete_load(under_way)
    assert results.count(Result.FAILED) >= 10 and Result.PENDING not in results
    tier.close()


def test_blocks_of_another_root_parent_or_tokens_are_never_hit(folder):
    tier = open_tier(folder)
    from dataclasses import replace

    content = BLOCKS[3]
    for other in (
        replace(content, origin=origin("other model")),
        replace(content, parent_hash=bytes(32)),
        replace(content, token_ids=(0, *content.token_ids[1:])),
    ):
        store(tier, content)
        assert names(load(tier, [other])) == ["MISS"]
        tier.folder.tidy()
    tier.close()


SMALL_DISK = """
    import ctypes, os, sys, threading
    from pathlib import Path
    from tier_blocks import block, load, open_tier, store
    folder = Path(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.mount(b"none", sys.argv[1].encode(), b"tmpfs", 0, b"size=3m,mode=0700") != 0:
        raise SystemExit("no file system of one's own: " + os.strerror(ctypes.get_errno()))
    tier = open_tier(folder / "kv")
    blocks = [block(n) for n in range(900)]
    for start in range(0, 900, 50):
        store(tier, *blocks[start:start + 50])
    hits = [r.name for r in load(tier, blocks)].count("HIT")
    stats = tier.stats()
    tier.close()
    tier = open_tier(folder / "kv")
    again = [r.name for r in load(tier, blocks)].count("HIT")
    print(hits, again, stats.num_stored, stats.num_evicted, tier.stats().num_damaged)
    tier.close()
"""


def test_a_full_disk_is_no_damage_and_the_slots_there_are_go_on_serving(tmp_path):
    """On a file system of 3 MiB, mounted in a namespace of its own; the limit says that there is room."""
    command = ["unshare", "--mount", "--map-root-user", "--user", sys.executable, "-c", textwrap.dedent(SMALL_DISK)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120, cwd=SUPPORT)
    assert done.returncode == 0, done.stderr
    hits, again, num_stored, num_evicted, num_damaged = map(int, done.stdout.split())
    assert 0 < hits <= 3 * 2**20 // SLOT and again == hits
    assert num_stored > hits and num_evicted > 0 and num_damaged == 0
    assert "is full before its limit of" in done.stderr


SHORT_FILES = """
    import resource, sys
    from pathlib import Path
    from tier_blocks import block, load, open_tier, store
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, 2**19))
    tier = open_tier(Path(sys.argv[1]) / "kv")
    blocks = [block(n) for n in range(160)]
    for start in range(0, 160, 10):
        store(tier, *blocks[start:start + 10])
    hits = [r.name for r in load(tier, blocks)].count("HIT")
    stats = tier.stats()
    print(hits, stats.num_stored, stats.num_evicted, stats.num_failed, stats.num_damaged)
    tier.close()
"""


def test_where_files_may_not_grow_the_slots_there_are_go_on_serving(tmp_path):
    """No privilege is needed for this one: no file may have more than 512 KiB."""
    command = [sys.executable, "-c", textwrap.dedent(SHORT_FILES), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=SUPPORT)
    assert done.returncode == 0, done.stderr
    hits, num_stored, num_evicted, num_failed, num_damaged = map(int, done.stdout.split())
    assert (hits, num_stored, num_failed, num_damaged) == (2**19 // SLOT, 160, 0, 0)
    assert num_evicted == 160 - hits


UNPRIVILEGED = """
    import os, sys
    from pathlib import Path
    from tier_blocks import block, load, open_tier, slabs, store
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    folder = Path(sys.argv[1]) / "kv"
    tier = open_tier(folder)
    blocks = [block(n) for n in range(12)]
    store(tier, *blocks)
    tier.close()
    tier = open_tier(folder)
    for slab in slabs(folder):
        slab.chmod(0)
    refused = [r.name for r in load(tier, blocks)]
    failed_writes = (store(tier, block(30)), tier.stats().num_failed, tier.stats().num_damaged)
    for slab in slabs(folder):
        slab.chmod(0o600)
    allowed = [r.name for r in load(tier, blocks)]
    tier.close()
    print(set(refused), set(allowed), failed_writes[1:])
    (folder / "index.sqlite").chmod(0)
    try:
        open_tier(folder)
    except Exception as error:
        print(type(error).__name__, error)
    (folder / "index.sqlite").chmod(0o600)
    tier = open_tier(folder)
    print({r.name for r in load(tier, blocks)})
    tier.close()
"""


def test_without_permission_nothing_is_read_and_nothing_is_deleted(tmp_path):
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):
            parent.chmod(0o755)
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(UNPRIVILEGED), str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=SUPPORT,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first.startswith("{'FAILED'} {'HIT'}") and first.endswith(", 0)")
    assert second.startswith("ConfigError") and "Permission denied" in second
    assert third == "{'HIT'}"


def test_threads_of_all_kinds_at_once_get_right_bytes_or_none(tmp_path):
    tier = open_tier(tmp_path / "kv", limit=2 * 2**20 + 40 * (SLOT + 512))
    blocks = [block(n) for n in range(120)]
    ends, faults = time.monotonic() + 3, []

    def work(run: Callable[[DiskTier, int], object]) -> None:
        number = 0
        try:
            while time.monotonic() < ends:
                run(tier, number)
                number += 1
        except BaseException as error:
            faults.append(error)

    def some(number: int) -> list[Any]:
        return [blocks[(number * 7 + step * 11) % 120] for step in range(8)]

    def pin(tier: DiskTier, number: int) -> None:
        tier.folder.set_pinned([each.key for each in some(number)[:2]], number % 2 == 0)

    jobs: list[Callable[[DiskTier, int], object]] = [
        lambda tier, number: store(tier, *some(number)),
        lambda tier, number: load(tier, some(number)),
        lambda tier, number: load(tier, some(number + 3)),
        lambda tier, number: (tier.touch([each.key for each in some(number)]), time.sleep(0.001)),
        lambda tier, number: (tier.folder.tidy(), time.sleep(0.01)),
        lambda tier, number: (pin(tier, number), time.sleep(0.01)),
        lambda tier, number: (tier.folder.clear(lambda each: each.place.slot % 5 == number % 5), time.sleep(0.05)),
        lambda tier, number: (tier.gauges(), tier.stats(), tier.folder.blocks(), time.sleep(0.01)),
    ]
    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
    assert tier.stats().num_damaged == tier.stats().num_failed == 0 and tier.stats().num_loaded > 0
    check_slots(tier)
    tier.close()
