"""A process may end, or fork, whatever its engine is doing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.async_engine import AsyncEngine
from octavo.engine.sampling_params import SamplingParams

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("way", ["exit", "exit in a daemon thread", "fork"])
def test_python_may_end_or_fork_while_an_engine_computes(way: str) -> None:
    """Without a shutdown the thread would be cut off inside the native core, which ends a process with SIGABRT."""
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("leaving.py")), way],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        # The frames of a thread that is cut off stay behind, and nanobind says so.
        assert way != "exit" or not done.stderr


def test_an_engine_that_is_forgotten_ends_its_thread(make_assembly: Callable[..., tuple[Any, Any]]) -> None:
    assembly, _ = make_assembly()
    engine = AsyncEngine.from_assembly(assembly)
    names = lambda: [thread.name for thread in threading.enumerate()]  # noqa: E731

    async def one(engine: AsyncEngine) -> None:
        await anext(engine.generate("abc", SamplingParams(max_tokens=2)))

    before = names().count("octavo-engine")
    asyncio.run(one(engine))
    del engine
    gc.collect()
    deadline = time.monotonic() + 10
    while names().count("octavo-engine") == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert names().count("octavo-engine") == before - 1
    assembly.engine.check_idle()
