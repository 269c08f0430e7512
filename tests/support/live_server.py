"""A server over real HTTP for tests: the application on a free loopback port, on a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI

from octavo.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import KeyRing
from octavo.server.run import Server, listen
from octavo.server.tracing import Tracing

_T = TypeVar("_T")
_START_WITHIN = 30.0
_GRACE = 5


class LiveServer:
    """A server that answers.

    Attributes:
        url: such as ``http://127.0.0.1:43210``; OpenAI clients want ``/v1`` behind it (:attr:`openai_url`).
        engine: the one it serves. Its methods belong on the server's event loop: see :meth:`run`.
        app: the application.
        server: what runs the application.
        model: the name to ask for.
    """

    def __init__(self, app: FastAPI, engine: AsyncEngine, port: int, server: Server) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.openai_url = f"{self.url}/v1"
        self.app = app
        self.engine = engine
        self.server = server
        assert server._loop is not None
        self._loop = server._loop

    @property
    def model(self) -> str:
        name: str = self.app.state.octavo.model_names[0]
        return name

    def run(self, work: Coroutine[Any, Any, _T], within: float = 60) -> _T:
        """Run a coroutine on the server's event loop and wait for what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within)

    def until_idle(self, within: float = 10) -> None:
        """Wait until nothing is under way and no block is held.

        Raises:
            AssertionError: it took too long.
        """
        end = time.monotonic() + within
        while time.monotonic() < end:
            if not self.app.state.octavo.service.admission.num_under_way and self.run(self._is_idle()):
                return
            time.sleep(0.01)
        raise AssertionError(f"not idle after {within} s: {self.run(self.engine.gauges())}")

    def check_idle(self) -> None:
        """The engine's own word, on its own thread, that it holds nothing and that its bookkeeping is sound.

        Raises:
            BlockError: it is not idle.
        """
        self.engine._thread.call(Engine.check_idle).result(10)

    async def _is_idle(self) -> bool:
        gauges = await self.engine.gauges()
        return not (gauges.num_running or gauges.num_waiting or gauges.num_active_blocks)


@contextmanager
def live_server(
    engine: AsyncEngine,
    config: ServerConfig | None = None,
    *,
    keys: KeyRing | None = None,
    tracing: Tracing | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[LiveServer]:
    """Serve ``engine``, which stays the caller's, until the block ends; on a free port, whatever ``config`` says."""
    settings = replace(config or ServerConfig(shutdown_timeout=_GRACE), port=0)
    app = create_app(engine, settings, keys=keys, tracing=tracing, clock=clock)
    is_ready = threading.Event()
    server = Server(app, is_ready.set)
    with listen(settings) as listener:
        port: int = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],), name="live-server")
        thread.start()
        try:
            assert is_ready.wait(_START_WITHIN), "the server did not start"
            yield LiveServer(app, engine, port, server)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served_model(model: str | Path, config: ServerConfig | None = None, **engine: Any) -> Iterator[LiveServer]:
    """Load ``model`` and serve it; ``engine``: the fields of :class:`octavo.EngineConfig`, small by default."""
    settings = {"kv_memory": "96MiB", "max_model_len": 2048, "threads": 2, **engine}
    running = AsyncEngine(model, **settings)
    try:
        with live_server(running, config) as server:
            yield server
    finally:
        running.shutdown()
