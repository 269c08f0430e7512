"""Files that appear whole or not at all, and of which nothing stays when their writer dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

_PREFIX = ".writing-"
_BEGINNING_SECONDS = 60
"""So old is a file at least whose writer must have locked it."""
_ABANDONED_SECONDS = 24 * 3600
"""So old is a file at least that nobody writes any more, where the file system has no locks that would say so."""


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[FileIO]:
    """A new file that takes its place at ``path`` when the block is done, for its owner to read only.

    An exception leaves what was at ``path`` before. What a killed process left in the folder is cleared away: a
    writer holds a lock on its file, which the system lets go of with the process.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _clear_abandoned(path.parent)
    handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_all(file: FileIO, piece: memoryview) -> None:
    """Write all of ``piece``; one call may take less."""
    while piece:
        piece = piece[file.write(piece) :]


def _clear_abandoned(folder: Path) -> None:
    for path in folder.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # another process may be removing the same file
            age = time.time() - path.stat().st_mtime
            if age > _ABANDONED_SECONDS or (age > _BEGINNING_SECONDS and _writer_is_gone(path)):
                path.unlink()


def _writer_is_gone(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody has it, or there are no locks here
            return False
        return True
