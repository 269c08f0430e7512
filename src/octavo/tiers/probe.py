"""How long a folder's disk takes to give bytes back: what decides between loading and computing."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

_MAX_BYTES = 4 * 2**20


def seconds_to_read(folder: Path, num_bytes: int) -> float:
    """Seconds that reading ``num_bytes`` takes which are not in memory, measured on a file that is gone afterwards.

    No more than 4 MiB are tried, and taken in proportion.

    Raises:
        OSError: the folder takes no file, or the disk is full.
    """
    size = min(num_bytes, _MAX_BYTES)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(size))
        file.flush()
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(size)
        began = time.perf_counter()
        os.preadv(file.fileno(), [buffer], 0)
        return (time.perf_counter() - began) * num_bytes / size
