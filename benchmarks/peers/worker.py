"""A process that holds one loaded engine, is asked to measure, and stands still between questions."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.errors import PeerError
from benchmarks.peers.place import last_lines
from benchmarks.peers.shapes import Shape, Timing


class Worker:
    """Starts the process; `wait_until_loaded` must come before any question.

    Between questions it and all its children are stopped (SIGSTOP): engines whose threads spin while they wait would
    otherwise slow down the others.

    Args:
        name: for messages.
        command: it speaks the protocol of `serve`.
        environment: beside this process's own.
        log: where what it prints goes; overwritten.
        folder: to run in.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
    ) -> None:
        self.name = name
        self._log = log
        self._unread = b""
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,  # its children are stopped with it
            )

    def wait_until_loaded(self, timeout: float) -> str:
        """Its version. Stops the process.

        Raises:
            PeerError: it could not load, or not in time.
        """
        version = str(self._read(timeout)["version"])
        self._signal(signal.SIGSTOP)
        return version

    def measure(self, shape: Shape, seed: int, timeout: float) -> Timing:
        """Raises:
        PeerError: the engine failed, died, or took longer than ``timeout`` seconds.
        """
        return Timing(**self._ask({"measure": asdict(shape), "seed": seed}, timeout))

    def roof(self, timeout: float) -> tuple[float, float]:
        """Bytes and operations per second that the machine gives now. Raises like `measure`."""
        roof = self._ask({"roof": True}, timeout)
        return roof["bytes_per_second"], roof["operations_per_second"]

    def close(self) -> None:
        """End the process and its children."""
        self._signal(signal.SIGCONT)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _ask(self, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            return self._read(timeout)
        except BrokenPipeError:
            raise PeerError(f"{self.name} has ended: {self._last_words()}") from None
        finally:
            self._signal(signal.SIGSTOP)

    def _read(self, timeout: float) -> dict[str, Any]:
        answer = json.loads(self._line(time.monotonic() + timeout))
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']} (see {self._log})")
        return dict(answer)

    def _line(self, deadline: float) -> bytes:
        stream = self._process.stdout
        assert stream is not None  # it is a pipe
        while b"\n" not in self._unread:
            if not select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
                self._signal(signal.SIGKILL)  # or a late answer would be taken for that to the next question
                raise PeerError(f"{self.name} did not answer in time and was ended: {self._last_words()}")
            received = os.read(stream.fileno(), 1 << 16)
            if not received:
                raise PeerError(f"{self.name} has ended: {self._last_words()}")
            self._unread += received
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _last_words(self) -> str:
        return last_lines(self._log)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
