"""A folder is one process's at a time; whoever comes second answers all the same."""

from __future__ import annotations

import signal
import subprocess
import sys

import disk_victim as victim
from exactness_lab import Ask

from octavo.config import EngineConfig
from octavo.engine.open_tier import OpenTier, open_tier


def test_the_second_process_runs_without_a_tier_and_the_third_has_what_the_first_left(tmp_path):
    folder, lab = tmp_path / "kv", victim.lab()
    first = subprocess.Popen(
        [sys.executable, victim.__file__, str(folder), "1", str(victim.TIGHT)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "opening\n"
        assert first.stdout.readline() == f"durable {victim.PINNED}\n"
        second = victim.start(folder)
        assert second.engine.tier is None
        ask = Ask(1, victim.prompt(victim.PINNED))
        second.ask(ask)
        lab.assert_exact(second, ask)
        assert second.cached[1] == 0
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(30)
    third = victim.start(folder)
    assert third.engine.tier is not None
    third.ask(ask)
    lab.assert_exact(third, ask)
    assert third.cached[1] > 0
    third.engine.close()


def test_why_there_is_no_tier_is_said(tmp_path):
    run = victim.start(tmp_path / "kv")
    config = EngineConfig(kv_disk=tmp_path / "kv")
    opened = open_tier(config, run.engine._namespace, run.runner, run.engine.plan, "lab")
    assert isinstance(opened, OpenTier) and opened.link is None and opened.disk is None
    assert opened.summary is not None and "a disk tier is one process's at a time" in str(opened.summary)
    run.engine.close()
