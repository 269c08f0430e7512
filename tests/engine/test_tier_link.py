"""Blocks go down to a disk tier as they are published, and come up when a prompt needs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from exactness_lab import Ask, Lab, Run, small_lab

from octavo.engine.load_cost import LoadCost
from octavo.engine.request import RequestStatus
from octavo.tiers.base import TierStats
from octavo.tiers.disk import DiskTier

PROMPT = 100
"""Tokens: six blocks of 16 and a bit."""


@pytest.fixture
def lab() -> Lab:
    return small_lab("gqa", "generic")


def tier_of(run: Run) -> DiskTier:
    assert run.engine.tier is not None and isinstance(run.engine.tier.tier, DiskTier)
    return run.engine.tier.tier


def stats(run: Run) -> TierStats:
    tier_of(run).flush()
    return tier_of(run).stats()


def stored(lab: Lab, folder: Path, *asks: Ask) -> None:
    """What ``asks`` leave behind of an engine that is gone."""
    run = lab.start(kv_disk=folder).ask(*asks)
    run.engine.close()


@contextmanager
def gate(run: Run, holds: int = 1) -> Iterator[threading.Event]:
    """Reads of the tier wait, all but the first ``holds - 1``, until the event is set."""
    folder: Any = tier_of(run).folder
    read, opened, count = folder.read, threading.Event(), [0]

    def waiting_read(*args: Any) -> Any:
        count[0] += 1
        if count[0] >= holds:
            assert opened.wait(30)
        return read(*args)

    folder.read = waiting_read
    try:
        yield opened
    finally:
        opened.set()
        folder.read = read


def step_until(run: Run, reached: Any) -> None:
    ends = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < ends
        run.step()


def test_after_a_restart_the_prompt_is_read_and_gives_the_bits_that_it_gave(lab, tmp_path):
    ask = Ask(1, lab.prompt(PROMPT))
    stored(lab, tmp_path / "kv", ask)
    run = lab.start(kv_disk=tmp_path / "kv").ask(ask)
    assert run.cached[1] == 96
    lab.assert_exact(run, ask)
    assert stats(run).num_loaded == 6 and run.engine.tier.num_loaded_tokens == 96
    assert run.engine.stats.num_cached_tokens == 96 and run.engine.stats.num_computed_tokens == 4 + 5
    run.engine.close()


def test_replies_are_kept_like_prompts(lab, tmp_path):
    stored(lab, tmp_path / "kv", Ask(1, lab.prompt(60), max_tokens=40))
    reply = tuple(lab.alone(Ask(1, lab.prompt(60), max_tokens=40)).tokens[0, 0])
    run = lab.start(kv_disk=tmp_path / "kv").ask(Ask(2, lab.prompt(60) + reply))
    assert run.cached[2] == 96
    lab.assert_exact(run, Ask(2, lab.prompt(60) + reply))
    run.engine.close()


def test_a_hit_in_memory_goes_on_in_the_tier(lab, tmp_path):
    long, short = Ask(1, lab.prompt(PROMPT)), Ask(2, lab.prompt(PROMPT)[:40])
    stored(lab, tmp_path / "kv", long)
    run = lab.start(kv_disk=tmp_path / "kv").ask(short).ask(long)
    assert (run.cached[2], run.cached[1]) == (32, 96)
    assert stats(run).num_loaded == 2 + 4
    lab.assert_exact(run, long, short)
    run.engine.close()


def test_others_are_computed_while_blocks_are_read(lab, tmp_path):
    waits, passes = Ask(1, lab.prompt(PROMPT)), Ask(2, lab.prompt(50, seed=9), max_tokens=20)
    stored(lab, tmp_path / "kv", waits)
    run = lab.start(kv_disk=tmp_path / "kv")
    with gate(run) as opened:
        run.add(waits)
        run.add(passes)
        step_until(run, lambda: len(run.tokens.get((2, 0), [])) == 20)
        assert (1, 0) not in run.tokens and run.engine.num_waiting == 1
        opened.set()
        run.finish()
    lab.assert_exact(run, waits, passes)
    run.engine.close()


def test_a_load_that_fails_half_way_keeps_the_good_prefix_and_deletes_nothing(lab, tmp_path, monkeypatch):
    ask = Ask(1, lab.prompt(PROMPT))
    stored(lab, tmp_path / "kv", ask)
    run = lab.start(kv_disk=tmp_path / "kv")
    folder = tier_of(run).folder
    fourth = sorted(folder.blocks(), key=lambda block: block.place)[3].key
    read = folder.read

    def failing(block: Any, data: memoryview) -> Any:
        if block.key == fourth:
            raise OSError(5, "the disk is in no mood")
        return read(block, data)

    monkeypatch.setattr(folder, "read", failing)
    run.ask(ask)
    assert run.cached[1] == 48 and stats(run).num_failed == 1
    lab.assert_exact(run, ask)
    monkeypatch.undo()
    run.engine.reset_prefix_cache()
    assert run.ask(Ask(2, ask.prompt)).cached[2] == 96, "it was there all the same"
    run.engine.close()


@pytest.mark.parametrize("how", ["aborted", "late"])
def test_what_ends_while_it_is_loaded_is_told_at_once_and_holds_its_blocks_until_nobody_writes_to_them(
    lab, tmp_path, how
):
    ask = Ask(1, lab.prompt(PROMPT))
    stored(lab, tmp_path / "kv", ask)
    run = lab.start(kv_disk=tmp_path / "kv")
    with gate(run, holds=2) as opened:
        run.add(ask)
        run.step()
        [request] = run.engine.scheduler.loading
        if how == "aborted":
            output = run.engine.abort("1")
            assert output is not None and output.outputs[0].finish_reason == "abort"
        else:
            request.group.deadline = time.monotonic() - 1
            run.engine._unfinished._timed.append(request.group)
            run.step()
        assert request.status is RequestStatus.FINISHED and run.engine.has_unfinished
        assert run.engine.kv.num_referenced_blocks == 6
        opened.set()
        step_until(run, lambda: not run.engine.has_unfinished)
    run.engine.check_idle()
    run.ask(Ask(2, ask.prompt))
    lab.assert_exact(run, Ask(2, ask.prompt))
    run.engine.close()


def test_whoever_asks_for_a_prefix_that_is_being_read_waits_for_it_and_reads_nothing_twice(lab, tmp_path):
    asks = [Ask(seed, lab.prompt(PROMPT)) for seed in (1, 2, 3)]
    stored(lab, tmp_path / "kv", asks[0])
    run = lab.start(kv_disk=tmp_path / "kv").ask(*asks)
    assert run.cached == {1: 96, 2: 96, 3: 96} and stats(run).num_loaded == 6
    lab.assert_exact(run, *asks)
    run.engine.close()


def test_the_answers_of_one_prompt_read_it_once(lab, tmp_path):
    stored(lab, tmp_path / "kv", Ask(1, lab.prompt(PROMPT)))
    several = Ask(2, lab.prompt(PROMPT), n=3)
    run = lab.start(kv_disk=tmp_path / "kv").ask(several)
    assert stats(run).num_loaded == 6 and run.engine.stats.num_computed_tokens == 4 + 3 * 5
    lab.assert_exact(run, several)
    run.engine.close()


def test_where_computing_is_quicker_nothing_is_read(lab, tmp_path):
    ask = Ask(1, lab.prompt(PROMPT))
    stored(lab, tmp_path / "kv", ask)
    run = lab.start(kv_disk=tmp_path / "kv")
    run.engine.tier.cost = LoadCost(seconds_per_token=0.001, seconds_per_block=1.0)
    assert run.engine.lookup(ask.prompt) == 0
    run.ask(ask)
    assert run.cached[1] == 0 and stats(run).num_loaded == 0
    lab.assert_exact(run, ask)
    run.engine.close()


def test_a_lookup_counts_what_would_be_read_and_reads_nothing(lab, tmp_path):
    ask = Ask(1, lab.prompt(PROMPT))
    stored(lab, tmp_path / "kv", ask)
    run = lab.start(kv_disk=tmp_path / "kv")
    assert run.engine.lookup(ask.prompt) == 96 and run.engine.lookup(ask.prompt[:96]) == 80
    assert run.engine.lookup(ask.prompt, b"another tenant") == 0
    assert stats(run).num_loaded == 0 and run.engine.kv.num_referenced_blocks == 0
    run.engine.close()


def test_what_a_full_queue_drops_is_made_up_for_when_it_is_used_again(lab, tmp_path):
    ask = Ask(1, lab.prompt(PROMPT))
    run = lab.start(kv_disk=tmp_path / "kv", kv_disk_queue=1)
    writing = threading.Lock()
    write: Any = tier_of(run)._write

    def held_write(batch: Any) -> Any:
        with writing:
            return write(batch)

    tier_of(run)._write = held_write  # type: ignore[method-assign]
    with writing:
        run.ask(ask)
        assert tier_of(run).stats().num_dropped >= 5
    assert stats(run).num_stored == 1
    for seed in range(2, 8):
        run.ask(Ask(seed, ask.prompt))
        tier_of(run).flush()
    assert stats(run).num_stored == 6
    assert run.engine.num_stored(ask.prompt[:96]) == 96
    run.engine.close()


def test_an_engine_that_is_closed_or_forgotten_has_made_everything_durable(lab, tmp_path):
    ask = Ask(1, lab.prompt(PROMPT))
    run = lab.start(kv_disk=tmp_path / "kv").ask(ask)
    del run
    run = lab.start(kv_disk=tmp_path / "kv")
    assert run.engine.tier is not None, "it let go of the folder"
    assert run.engine.lookup(ask.prompt) == 96
    run.engine.close()


def test_a_preempted_request_reads_back_what_was_evicted(lab, tmp_path):
    asks = [Ask(seed, lab.prompt(60, seed=seed), max_tokens=40) for seed in (1, 2, 3)]
    run = lab.start(kv_disk=tmp_path / "kv", num_blocks=16).ask(*asks)
    assert run.engine.stats.num_preemptions
    lab.assert_exact(run, *asks)
    run.engine.close()


def test_salts_are_apart_and_known_by_their_digest_alone(lab, tmp_path):
    from octavo.engine.intake import RequestOptions

    run = lab.start(kv_disk=tmp_path / "kv")
    for salt in (b"alice", b"bob"):
        options = RequestOptions(cache_salt=salt)
        ask = Ask(int(salt == b"bob"), lab.prompt(PROMPT))
        run.engine.add(
            run.engine.intake.accept(list(ask.prompt), ask.params(), request_id=str(ask.seed), options=options)
        )
        run.finish()
    assert run.cached == {0: 0, 1: 0}
    tier_of(run).flush()
    assert len({block.origin.tenant for block in tier_of(run).folder.blocks()}) == 2
    run.engine.reset_prefix_cache()
    assert run.engine.lookup(lab.prompt(PROMPT)) == 0 and run.engine.lookup(lab.prompt(PROMPT), b"bob") == 96
    run.engine.close()
    for file in (tmp_path / "kv").iterdir():
        assert b"alice" not in file.read_bytes()
