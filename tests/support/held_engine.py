"""An engine that stands still between two steps, so that a test can look at what waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.async_engine import AsyncEngine


@contextmanager
def held(engine: AsyncEngine, within: float = 60) -> Iterator[None]:
    """The engine takes no step and no order until the block ends."""
    stopped, opened = threading.Event(), threading.Event()

    def stand_still(_: Any) -> None:
        stopped.set()
        assert opened.wait(within)

    done = engine._thread.call(stand_still)
    assert stopped.wait(within)
    try:
        yield
    finally:
        opened.set()
        done.result(within)


@contextmanager
def failing_step(engine: AsyncEngine, error: BaseException) -> Iterator[None]:
    """The engine's next step raises ``error``: it has failed then, for good."""
    runner: Any = engine.assembly.engine._runner

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def execute(self, batch: Any) -> Any:
            raise error

    engine.assembly.engine._runner = Failing()  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.assembly.engine._runner = runner
