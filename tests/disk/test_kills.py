"""Killed at any moment, a process leaves behind what it had made durable, and nothing wrong."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import disk_victim as victim
import pytest
from exactness_lab import Ask

from octavo.tiers.disk import DiskTier
from octavo.tiers.verifying import verify


def kill(folder: Path, seed: int, limit: int, rng: random.Random) -> list[int]:
    """Start a process on ``folder`` and kill it while it opens that or, more often, while it is under load. The numbers
    of the prompts that it had made durable.
    """
    process = subprocess.Popen(
        [sys.executable, victim.__file__, str(folder), str(seed), str(limit)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    durable: list[int] = []
    try:
        assert process.stdout.readline() == "opening\n"
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0, 0.1))
        else:
            assert process.stdout.readline() == f"durable {victim.PINNED}\n"
            durable.append(victim.PINNED)
            time.sleep(rng.uniform(0, 0.5))
        assert process.poll() is None, "it goes on until it is killed"
    finally:
        process.send_signal(signal.SIGKILL)
    for line in process.stdout:
        durable += map(int, line.split()[1:])
    assert process.wait(30) == -signal.SIGKILL
    return durable


def look(folder: Path, limit: int, durable: list[int], rng: random.Random, seen: Counter[str]) -> None:
    """Open what a killed process left, and hold it to its promises."""
    run = victim.start(folder, limit)
    assert run.engine.tier is not None and isinstance(run.engine.tier.tier, DiskTier), "a dead process holds nothing"
    tier = run.engine.tier.tier
    seen["adopted"] += len(tier.folder)
    seen["damaged"] += tier.stats().num_damaged + verify(tier.folder).num_damaged
    promised = [Ask(number, victim.prompt(number)) for number in set(durable)]
    others = [Ask(number, victim.prompt(number)) for number in rng.sample(range(victim.NUM_PROMPTS), 4)]
    for ask in promised + others:
        run.ask(ask)
    victim.lab().assert_exact(run, *promised, *others)
    for ask in promised:
        assert run.cached[ask.seed] == (len(ask.prompt) - 1) // 16 * 16, "it was said to be durable"
    tier.flush()
    seen["damaged"] += tier.stats().num_damaged
    seen["failed"] += tier.stats().num_failed
    seen["promised"] += len(promised)
    seen["asked"] += len(promised + others)
    seen["hits"] += sum(run.cached[ask.seed] > 0 for ask in promised + others)
    seen["tokens"] += run.engine.tier.num_loaded_tokens
    run.engine.close()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= limit


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_at_any_moment_under_load_nothing_is_damaged_and_what_was_durable_is_hit(tmp_path, kills, capsys):
    rng, seen = random.Random(kills), Counter[str]()
    for number in range(kills):
        name, limit = [("tight", victim.TIGHT), ("roomy", victim.ROOMY)][number % 2]
        durable = kill(tmp_path / name, number, limit, rng)
        look(tmp_path / name, limit, durable, rng, seen)
        assert (seen["damaged"], seen["failed"]) == (0, 0)
    assert seen["promised"] > kills and seen["hits"] > seen["asked"] // 2, "most of it is used again"
    with capsys.disabled():
        print(
            f"\n{kills} kills: {seen['adopted']:,} blocks adopted after them, all proved, {seen['damaged']} damaged; "
            f"{seen['promised']:,} prompts had been made durable, all of them hit; {seen['hits']:,} of "
            f"{seen['asked']:,} requests hit, {seen['tokens']:,} tokens read; 0 wrong"
        )
