"""A server as a process: started from its recipe, waited for, and ended with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.errors import PeerError
from benchmarks.peers.lifetime import die_with_parent
from benchmarks.peers.place import ROOT, last_lines
from benchmarks.peers.recipe import HOST, Recipe

_END_SECONDS = 20


class Server:
    """Started here; `wait_until_ready` must come before any request. A context manager: it ends with it.

    Args:
        recipe: made for ``port``.
        log: where what it prints goes; overwritten.
    """

    def __init__(self, name: str, recipe: Recipe, port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self.recipe = recipe
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                recipe.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env={**os.environ, **recipe.environment},
                start_new_session=True,  # its children are ended with it
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_until_ready(self, timeout: float) -> str:
        """The name of the model that it serves.

        Raises:
            PeerError: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + timeout
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # refused, broken off, or answered with an error
                _get(self.port, self.recipe.ready)
                return str(json.loads(_get(self.port, "/v1/models"))["data"][0]["id"])
            time.sleep(0.1)
        raise PeerError(f"the server of {self.name} did not start: {last_lines(self._log)}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
        return answer.read()
