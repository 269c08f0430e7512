"""Killed at any moment, a process leaves behind what it had made durable, and nothing wrong."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import disk_victim as victim
import pytest
from exactness_lab import Ask


def kill_under_load(folder: Path, seed: int, delay: float) -> int:
    """Start a process on ``folder`` and kill it ``delay`` seconds after it is under load. How many it answered."""
    process = subprocess.Popen(
        [sys.executable, victim.__file__, str(folder), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "durable\n"
        time.sleep(delay)
    finally:
        process.send_signal(signal.SIGKILL)
    lines = process.stdout.read().splitlines()
    assert process.wait(30) == -signal.SIGKILL, "it went on until it was killed"
    return len(lines)


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_at_any_moment_under_load_nothing_is_damaged_and_what_was_durable_is_hit(tmp_path, kills, capsys):
    folder, rng = tmp_path / "kv", random.Random(kills)
    lab = victim.lab()
    answered = adopted = hits = asked = 0
    for number in range(kills):
        answered += kill_under_load(folder, number, rng.uniform(0, 0.5))
        run = victim.start(folder)
        assert run.engine.tier is not None and run.engine.tier.tier is not None, "a dead process holds nothing"
        adopted += run.engine.tier.tier.gauges().num_blocks
        pinned = Ask(1000, victim.prompt(victim.PINNED))
        asks = [pinned] + [Ask(each, victim.prompt(each)) for each in rng.sample(range(victim.NUM_PROMPTS), 4)]
        for ask in asks:
            run.ask(ask)
        lab.assert_exact(run, *asks)
        run.engine.tier.tier.flush()
        stats = run.engine.tier.tier.stats()
        assert run.cached[1000] == (len(pinned.prompt) - 1) // 16 * 16, "it was said to be durable"
        assert (stats.num_damaged, stats.num_failed) == (0, 0)
        hits += sum(run.cached[ask.seed] > 0 for ask in asks)
        asked += len(asks)
        run.engine.close()
        assert sum(path.stat().st_size for path in folder.iterdir()) <= victim.LIMIT
    assert hits > asked // 2, "most of it is used again"
    with capsys.disabled():
        print(
            f"\n{kills} kills, {answered:,} rounds of answers before them; {adopted:,} blocks adopted after them; "
            f"{hits:,} of {asked:,} requests hit, 0 damaged, 0 wrong"
        )
