"""Looking at files, and filling arrays from them, completely or not at all."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import numpy.typing as npt

from octavo.errors import WeightsError


def is_file(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        WeightsError: that cannot be said: it lies where we may not look.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise WeightsError(f"cannot look at {path}: {error.strerror or error}") from error


def fill(file: FileIO, array: npt.NDArray[Any], what: str) -> None:
    """Read bytes from the file's position until the C-contiguous ``array`` is full.

    Raises:
        WeightsError: the file ends first; the message says inside ``what`` and how much is missing.
    """
    if not array.size:
        return
    view = memoryview(array.data).cast("B")
    while view:
        count = file.readinto(view)
        if not count:
            raise WeightsError(f"{file.name!s} ends inside {what}: {len(view)} bytes are missing")
        view = view[count:]
