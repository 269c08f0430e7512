"""An engine's process: asked over its standard streams, stopped between questions, gone at the end. No peer is needed:
the engine is made up, and served as a real one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.peers.errors import PeerError
from benchmarks.peers.place import ROOT
from benchmarks.peers.shapes import Shape
from benchmarks.peers.worker import Worker

SHAPE = Shape("decode", 2, 16)

ENGINE = """
import os, subprocess, sys, time, types
from benchmarks.peers import engine, serve, shapes

class Made(engine.Engine):
    version = "1.2"
    def __init__(self):
        self.child = subprocess.Popen(["sleep", "100"])
    def measure(self, shape, seed):
        print("chatter on standard output")
        if seed == 1: raise ValueError("no memory")
        if seed == 2: os._exit(3)
        if seed == 3: time.sleep(60)
        return shapes.Timing(shape.length / 16, cold=self.child.pid)
    def roof(self):
        return 5.0, 6.0

def open_engine(work, threads):
    print("opening", work, threads)
    if threads == 99: raise RuntimeError("no such model")
    return Made()

module = types.ModuleType("benchmarks.peers.made")
module.open_engine = open_engine
sys.modules[module.__name__] = module
serve.main()
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Worker]]:
    """Workers to be ended after the test."""
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.close()


def start(tmp_path: Path, started: list[Worker], threads: int = 2) -> Worker:
    command = [sys.executable, "-c", ENGINE, "made", str(tmp_path), str(threads)]
    worker = Worker("made", command, {"PYTHONPATH": str(ROOT)}, tmp_path / "log", ROOT)
    started.append(worker)
    return worker


def loaded(tmp_path: Path, started: list[Worker]) -> Worker:
    worker = start(tmp_path, started)
    assert worker.wait_until_loaded(30) == "1.2"
    return worker


def state(pid: int) -> str:
    """R, S, T (stopped) ... of a process, or "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def comes_true(what: Callable[[], bool], *, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.01)
    return False


def test_what_an_engine_prints_does_not_disturb_its_answers(tmp_path: Path, started: list[Worker]) -> None:
    worker = loaded(tmp_path, started)
    assert [worker.measure(SHAPE, seed, 30).seconds for seed in (7, 8)] == [1.0, 1.0]
    assert worker.roof(30) == (5.0, 6.0)
    assert (tmp_path / "log").read_text().count("chatter") == 2


def test_an_engine_stands_still_between_questions_and_so_do_its_children(tmp_path: Path, started: list[Worker]) -> None:
    worker = loaded(tmp_path, started)
    child = int(worker.measure(SHAPE, 7, 30).cold or 0)
    assert comes_true(lambda: state(child) == state(os.getsid(child)) == "T")
    assert worker.measure(SHAPE, 8, 30).cold == child


def test_closing_ends_an_engine_that_stands_still_with_its_children(tmp_path: Path, started: list[Worker]) -> None:
    worker = loaded(tmp_path, started)
    child = int(worker.measure(SHAPE, 7, 30).cold or 0)
    worker.close()
    assert comes_true(lambda: state(child) in ("", "Z"))


def test_an_error_is_told_and_the_next_question_is_answered(tmp_path: Path, started: list[Worker]) -> None:
    worker = loaded(tmp_path, started)
    with pytest.raises(PeerError, match=r"made: ValueError: no memory \(see .*log\)"):
        worker.measure(SHAPE, 1, 30)
    assert worker.measure(SHAPE, 7, 30).seconds == 1.0


def test_an_engine_that_cannot_load_says_why(tmp_path: Path, started: list[Worker]) -> None:
    with pytest.raises(PeerError, match="RuntimeError: no such model"):
        start(tmp_path, started, threads=99).wait_until_loaded(30)


def test_an_engine_that_dies_is_told_with_its_last_words(tmp_path: Path, started: list[Worker]) -> None:
    worker = loaded(tmp_path, started)
    with pytest.raises(PeerError, match=r"made has ended: .*chatter"):
        worker.measure(SHAPE, 2, 30)
    with pytest.raises(PeerError, match="made has ended"):
        worker.measure(SHAPE, 7, 30)


def test_an_engine_that_takes_too_long_is_given_up(tmp_path: Path, started: list[Worker]) -> None:
    worker = loaded(tmp_path, started)
    with pytest.raises(PeerError, match="did not answer in time and was ended"):
        worker.measure(SHAPE, 3, 0.2)
    with pytest.raises(PeerError, match="made has ended"):  # and no late answer is taken for another's
        worker.measure(SHAPE, 7, 30)


def test_an_engine_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = f"""
import sys, time
from pathlib import Path
from benchmarks.peers.worker import Worker
worker = Worker("made", [sys.executable, "-c", {ENGINE!r}, "made", "x", "2"], {{}}, Path({str(tmp_path / "log")!r}),
    Path("."))
worker.wait_until_loaded(30)
print(worker._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        engine = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    assert comes_true(lambda: state(engine) in ("", "Z"))
