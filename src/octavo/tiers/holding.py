"""Who has a folder: one process at a time, which may leave word of where it is found."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

from octavo.errors import ConfigError, TierInUseError

LOCK = "lock"
"""The file that says whose the folder is; there from its first use on."""


def holder_of(folder: Path) -> dict[str, str]:
    """What the process that has ``folder`` left word of: see :func:`announce`. Empty: nothing."""
    try:
        found = json.loads((folder / LOCK).read_bytes() or b"{}")
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def hold(folder: Path) -> int:
    """Make the folder if need be, and take it for this process alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"others may enter {str(folder)!r}, and keys and values tell of prompts: chmod 700 it")
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be used as a disk tier: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        holder = holder_of(folder).get("pid")
        who = f"process {holder}" if holder else "another process"
        raise TierInUseError(f"{who} uses {str(folder)!r}; a disk tier is one process's at a time") from error
    return file


def announce(file: int, facts: dict[str, str]) -> None:
    """Leave word, for who finds the folder held, of who has it: its ``pid``, and ``facts``.

    ``file``: what :func:`hold` returned.
    """
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps({"pid": os.getpid(), **facts}).encode(), 0)


def release(file: int) -> None:
    """Let others have the folder."""
    os.ftruncate(file, 0)
    fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file, too
    os.close(file)
