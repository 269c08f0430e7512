"""A packed copy of dequantised weights in the user's cache, so that the next start only reads.

A copy is a convenience and never a source of truth: one that is missing, foreign, cut short or damaged is a
miss, and a cache that cannot be written is a warning.

    magic 8 | header bytes 4 | header, JSON | XXH3-128 of all before, 16 | buffers, one after another
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from octavo import _native
from octavo.config import user_cache
from octavo.errors import WeightsError
from octavo.model.appearing import appearing, write_all
from octavo.model.base import ModelSource
from octavo.model.reading import fill

LIMIT_BYTES = 8 << 30
"""Most bytes of packed copies kept; those used longest ago go first."""

Buffers = Sequence[tuple[str, npt.NDArray[np.uint8]]]
"""Name and bytes of each packed buffer, as ``_native.Model.buffers`` lists them."""

_MAGIC = b"OCTPACK1"
_SUFFIX = ".packed"
_MAX_HEADER = 1 << 24
_CHUNK = 1 << 22
_log = logging.getLogger(__name__)


class _Header(NamedTuple):
    key: str
    weights_digest: str
    data_xxh3: str
    buffers: list[list[str | int]]


class PackedCopy:
    """The place of one model's packed copy: whatever decides its bytes is in the key.

    Args:
        source: where the weights come from. The key holds its files' resolved paths, sizes and times of
            change, the spec's digest, the layout's version and the version of the library that dequantises.

    Raises:
        WeightsError: a weight file is missing.
    """

    def __init__(self, source: ModelSource) -> None:
        self.key = _key(source)
        self.path = user_cache() / "packed" / (self.key + _SUFFIX)

    def exists(self) -> bool:
        """Whether there is a file; it may still turn out to be no copy of this model."""
        try:
            return self.path.is_file()
        except OSError:  # a cache that cannot be looked into has none
            return False

    def load(self, buffers: Buffers) -> bytes | None:
        """Fill the model's buffers and return the weights digest; ``None`` is a miss.

        The buffers are zero before, and zero again after a miss.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                header = _read_header(file)
                if header.key != self.key or header.buffers != _sizes(buffers):
                    raise WeightsError("it is a copy of something else")
                if _read_data(file, buffers) != header.data_xxh3:
                    raise WeightsError("its checksum does not match")
            os.utime(self.path)
            return bytes.fromhex(header.weights_digest)
        except FileNotFoundError:
            return None
        except (OSError, WeightsError, ValueError, TypeError, RecursionError) as error:
            _log.warning("the packed weights %s are not used and will be written anew: %s", self.path, error)
        for _, buffer in buffers:
            buffer[:] = 0
        return None

    def store(self, buffers: Buffers, weights_digest: bytes) -> None:
        """Write the copy: its owner's only, visible when complete. If that fails, warn and keep none."""
        data_bytes = sum(buffer.nbytes for _, buffer in buffers)
        if data_bytes + _MAX_HEADER > LIMIT_BYTES:
            return
        header = _Header(self.key, weights_digest.hex(), _checksum(buffers), _sizes(buffers))
        try:
            _make_room(self.path.parent, data_bytes + _MAX_HEADER)
            _write(self.path, header, buffers)
        except OSError as error:
            _log.warning(
                "cannot keep packed weights in %s (%s); the next start will dequantise again",
                self.path.parent,
                error.strerror or error,
            )


def weights_digest(buffers: Buffers) -> bytes:
    """SHA-256 that names these weights, whatever kind of file they came from."""
    digest = hashlib.sha256()
    for name, buffer in buffers:
        digest.update(f"{len(name)}:{name}:{buffer.nbytes}:".encode())
        digest.update(buffer.data)
    return digest.digest()


def _key(source: ModelSource) -> str:
    files = []
    for path in source.files():
        resolved = path.resolve()
        try:
            stat = resolved.stat()
        except OSError as error:
            raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
        files.append([str(resolved), stat.st_size, stat.st_mtime_ns])
    parts = [files, source.spec.digest().hex(), _native.LAYOUT_VERSION, version("gguf")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _sizes(buffers: Buffers) -> list[list[str | int]]:
    return [[name, buffer.nbytes] for name, buffer in buffers]


def _checksum(buffers: Buffers) -> str:
    checksum = xxhash.xxh3_128()
    for _, buffer in buffers:
        checksum.update(buffer.data)
    return str(checksum.hexdigest())


def _read_header(file: FileIO) -> _Header:
    start = file.read(len(_MAGIC) + 4) or b""
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if len(start) != len(_MAGIC) + 4 or not start.startswith(_MAGIC) or length > _MAX_HEADER:
        raise WeightsError("it is not a packed copy of this version")
    header, checksum = file.read(length) or b"", file.read(16)
    if len(header) != length or xxhash.xxh3_128_digest(start + header) != checksum:
        raise WeightsError("its header is damaged")
    return _Header(**json.loads(header))


def _read_data(file: FileIO, buffers: Buffers) -> str:
    """Fill the buffers, checksumming each piece while it is still in the processor's cache."""
    checksum = xxhash.xxh3_128()
    for name, buffer in buffers:
        for start in range(0, buffer.nbytes, _CHUNK):
            piece = buffer[start : start + _CHUNK]
            fill(file, piece, name)
            checksum.update(piece.data)
    if file.read(1):
        raise WeightsError("it is longer than it should be")
    return str(checksum.hexdigest())


def _write(path: Path, header: _Header, buffers: Buffers) -> None:
    text = json.dumps(header._asdict()).encode()
    start = _MAGIC + len(text).to_bytes(4, "little") + text
    with appearing(path) as file:
        write_all(file, memoryview(start + xxhash.xxh3_128_digest(start)))
        for _, buffer in buffers:
            write_all(file, memoryview(buffer.data))


def _make_room(folder: Path, needed: int) -> None:
    """Remove the copies used longest ago until ``needed`` more bytes fit."""
    copies = []
    for path in folder.glob("*" + _SUFFIX):
        # Another process may be removing the same file.
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            copies.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total + needed <= LIMIT_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
