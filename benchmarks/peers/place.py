"""Where peers live: a folder with an environment and a log each, and the model files that they share."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.errors import PeerError

ROOT = Path(__file__).resolve().parents[2]
"""Where ``python -m benchmarks...`` is run."""
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Place:
    """The work folder. Everything in it can be made again.

    WORK/env/PEER     its virtual environment
    WORK/log/PEER.*   what its commands printed
    WORK/model/       the embedded model in the formats that peers read
    WORK/PEER/        what else it needs
    """

    work: Path
    torch_index: str | None = None
    """A pip index with CPU builds of torch, where pip's own settings do not lead to one."""

    def folder(self, name: str) -> Path:
        """A folder of that name; created here."""
        path = self.work / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        return self.folder("log") / name

    @property
    def hf_folder(self) -> Path:
        """Hugging Face, bf16."""
        return self.work / "model" / "hf-bf16"

    def gguf(self, dtype: str) -> Path:
        return self.work / "model" / f"{dtype}.gguf"

    def environment(self, peer: str) -> Path:
        return self.work / "env" / peer

    def python(self, peer: str) -> Path:
        return self.environment(peer) / "bin" / "python"

    def install(self, peer: str, requirements: Sequence[str]) -> None:
        """Make the peer's environment with pip, once.

        Raises:
            PeerError: pip failed.
        """
        done = self.environment(peer) / "installed"
        wanted = "\n".join(requirements)
        if done.is_file() and done.read_text() == wanted:
            return
        self.run(peer, "venv", [sys.executable, "-m", "venv", "--clear", str(self.environment(peer))])
        torch = [requirement for requirement in requirements if requirement.startswith("torch==")]
        if torch and self.torch_index:
            self.pip(peer, "torch", ["install", *torch, "--index-url", self.torch_index])
        self.pip(peer, "install", ["install", *requirements])
        done.write_text(wanted)

    def pip(self, peer: str, step: str, arguments: Sequence[str]) -> None:
        """Raises:
        PeerError: pip failed.
        """
        self.run(peer, step, [str(self.python(peer)), "-m", "pip", "--disable-pip-version-check", *arguments])

    def run(self, peer: str, step: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a command to its end, at low priority; its output goes to a log.

        Raises:
            PeerError: it cannot be started, or ends with an error.
        """
        log = self.log(f"{peer}.{step}")
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    ["nice", "-n", "10", *command],
                    cwd=ROOT,
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                ).returncode
            except OSError as error:
                raise PeerError(f"cannot run {command[0]}: {error}") from error
        if status:
            raise PeerError(f"{step} failed: {last_lines(log)}")


def last_lines(log: Path) -> str:
    """What a log ends with, on one line, and where it is."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{' | '.join(lines[-_LAST_LINES:])} (see {log})"
    return f"see {log}"
