"""Reading one safetensors file: its index, and single tensors of it as bfloat16.

Own code rather than the safetensors library because numpy has no bfloat16, so the library's numpy side
cannot hand such tensors out; and because a file that shrinks can kill a process that mapped it, not one that
reads it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import WeightsError
from octavo.model.bfloat16 import to_bfloat16
from octavo.model.reading import fill

_DTYPES: dict[str, type[np.generic]] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
_MAX_HEADER = 100_000_000
"""The format's own limit on the size of its index."""
_READ_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies (``start`` and ``nbytes`` in the file), its type and its shape."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafetensorsFile:
    """The index of one file, checked against the file's size.

    Raises:
        WeightsError: the file is missing, cut short, or not a safetensors file; the message has both sizes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > min(_MAX_HEADER, size - 8):
                    raise WeightsError(
                        f"{path} is damaged or cut short: its index should take {length} bytes of {size}"
                    )
                header = file.read(length)
        except (OSError, ValueError) as error:  # an index may name files that no system can have
            raise WeightsError(f"cannot read {path}: {error}") from error
        self.tensors = _parse(path, header, size - 8 - length, 8 + length)

    def read(self, name: str) -> npt.NDArray[np.uint16]:
        """One tensor as bfloat16 bits, read and rounded in chunks.

        Raises:
            WeightsError: its type is not BF16, F16 or F32, or the file ends early.
        """
        stored = self.tensors[name]
        dtype = np.dtype(_DTYPES[stored.dtype])
        bits = np.empty(stored.nbytes // dtype.itemsize, np.uint16)
        step = _READ_BYTES // dtype.itemsize
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(stored.start)
                for first in range(0, bits.size, step):
                    part = bits[first : first + step]
                    raw = part if dtype == np.uint16 else np.empty(part.size, dtype)
                    fill(file, raw, f"tensor {name}")
                    if raw is not part:
                        part[:] = to_bfloat16(raw)
        except OSError as error:
            raise WeightsError(f"cannot read {self.path}: {error.strerror or error}") from error
        return bits.reshape(stored.shape)

    def check_dtype(self, name: str) -> None:
        """Raise WeightsError if a tensor's type is not one Octavo can turn into bfloat16."""
        dtype = self.tensors[name].dtype
        if dtype not in _DTYPES:
            raise WeightsError(f"{self.path}: tensor {name} has type {dtype}; Octavo reads {', '.join(_DTYPES)}")


def _parse(path: Path, header: bytes, data_bytes: int, data_start: int) -> dict[str, StoredTensor]:
    try:
        index = json.loads(header)
        tensors = {name: _stored(entry, data_start) for name, entry in index.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error
    end = max((stored.start + stored.nbytes for stored in tensors.values()), default=data_start)
    if end - data_start != data_bytes:
        raise WeightsError(
            f"{path} should have {end} bytes by its own index; it has {data_start + data_bytes}. "
            "It is cut short or damaged: fetch it again"
        )
    return tensors


def _stored(entry: dict[str, Any], data_start: int) -> StoredTensor:
    dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not all(isinstance(value, int) and value >= 0 for value in (*shape, start, end)):
        raise ValueError("a shape or offset is not a whole number")
    if end < start:
        raise ValueError("a tensor ends before it starts")
    if dtype in _DTYPES and end - start != math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize:
        raise ValueError(f"{end - start} bytes cannot hold a {dtype} tensor of shape {list(shape)}")
    return StoredTensor(dtype=str(dtype), shape=shape, start=data_start + start, nbytes=end - start)
