"""Reading one GGUF file: its metadata, its tensor index, and single tensors as bfloat16.

The index is parsed here rather than by gguf's own reader, which takes two seconds for a vocabulary of 49,000
tokens (most of a start) and trusts the counts in the file. What a quantised block means is gguf's knowledge.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.model.bfloat16 import to_bfloat16
from octavo.model.reading import fill

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_FIRST_READ = 1 << 24
_CHUNK_ELEMENTS = 1 << 20
"""Weights dequantised at a time: what loading needs beside the packed weights and one tensor."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_FLOAT32, _FLOAT16, _BFLOAT16 = 0, 1, 30
PLAIN_TYPES = (_FLOAT32, _FLOAT16, _BFLOAT16)
"""Codes of the storage types that need no dequantising."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the index: ``shape`` as numpy orders it, ``type_id`` the storage type's code."""

    shape: tuple[int, ...]
    type_id: int
    start: int


class GgufFile:
    """The header of one file: ``metadata`` as Python values, and ``tensors`` by name.

    Raises:
        WeightsError: the file is missing, cut short, or not a GGUF file.
        UnsupportedModelError: it has a version or byte order Octavo does not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
            parser = _parse(path, self.size)
        except OSError as error:
            raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
        self.metadata = parser.metadata
        self.tensors = parser.tensors

    def check_data(self) -> None:
        """Check that every tensor has a known type and lies inside the file.

        Raises:
            WeightsError: the file is cut short; both sizes are in the message.
            UnsupportedModelError: a tensor has a type that gguf does not know.
        """
        self._check_end(
            max((t.start + math.prod(self._stored_shape(name)) for name, t in self.tensors.items()), default=0)
        )

    def _check_end(self, end: int) -> None:
        if end > self.size:
            raise WeightsError(
                f"{self.path} should have at least {end} bytes by its own index; it has {self.size}. "
                "It is cut short: fetch it again"
            )

    def read(self, name: str) -> npt.NDArray[np.uint16]:
        """One tensor as bfloat16 bits, read and dequantised in chunks of rows.

        Raises:
            WeightsError: the file ends early.
            UnsupportedModelError: gguf cannot dequantise the tensor's type.
        """
        tensor = self.tensors[name]
        *outer, row_bytes = self._stored_shape(name)
        rows = math.prod(outer)
        bits = np.empty((rows, tensor.shape[-1]), np.uint16)
        step = max(1, _CHUNK_ELEMENTS // max(1, tensor.shape[-1]))
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(tensor.start)
                for first in range(0, rows, step):
                    part = bits[first : first + step]
                    raw = np.empty((len(part), row_bytes), np.uint8)
                    fill(file, raw, f"tensor {name}")
                    part[:] = _to_bfloat16(raw, name, tensor.type_id)
        except OSError as error:
            raise WeightsError(f"cannot read {self.path}: {error.strerror or error}") from error
        return bits.reshape(tensor.shape)

    def read_floats(self, name: str) -> list[float]:
        """A short float32 tensor as numbers, not rounded.

        Raises:
            WeightsError: the file ends early.
            UnsupportedModelError: the tensor is not float32.
        """
        tensor = self.tensors[name]
        if tensor.type_id != _FLOAT32 or math.prod(tensor.shape) > _CHUNK_ELEMENTS:
            raise UnsupportedModelError(
                f"{self.path}: {name} has shape {list(tensor.shape)} and storage type {tensor.type_id}; "
                f"Octavo needs at most {_CHUNK_ELEMENTS} float32 numbers there (type {_FLOAT32})"
            )
        values = np.empty(math.prod(tensor.shape), "<f4")
        self._check_end(tensor.start + values.nbytes)  # before a place that no file has is looked for
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(tensor.start)
                fill(file, values, f"tensor {name}")
        except OSError as error:
            raise WeightsError(f"cannot read {self.path}: {error.strerror or error}") from error
        return [float(value) for value in values]

    def _stored_shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape with the bytes of a row in place of its elements."""
        import gguf

        tensor = self.tensors[name]
        block, block_bytes = gguf.GGML_QUANT_SIZES[_storage(name, tensor.type_id)]
        if not tensor.shape or tensor.shape[-1] % block:
            raise WeightsError(f"{self.path}: tensor {name} of shape {list(tensor.shape)} has no whole {block}-blocks")
        return (*tensor.shape[:-1], tensor.shape[-1] // block * block_bytes)


def _storage(name: str, type_id: int) -> Any:
    import gguf

    try:
        return gguf.GGMLQuantizationType(type_id)
    except ValueError:
        raise UnsupportedModelError(
            f"tensor {name} has storage type {type_id}, which the installed gguf package does not know"
        ) from None


def _to_bfloat16(raw: npt.NDArray[np.uint8], name: str, type_id: int) -> npt.NDArray[np.uint16]:
    """Rows of stored bytes as bfloat16 bits."""
    import gguf.quants

    if type_id == _BFLOAT16:
        return raw.view(np.uint16)
    storage = _storage(name, type_id)
    try:
        # A broken scale makes broken weights, here as in every other reader; numpy need not warn about each.
        with np.errstate(all="ignore"):
            return to_bfloat16(gguf.quants.dequantize(raw, storage))
    except NotImplementedError:
        raise UnsupportedModelError(
            f"tensor {name} is stored as {storage.name}, which the installed gguf package cannot dequantise"
        ) from None


def _parse(path: Path, size: int) -> _HeaderParser:
    """Parse the header from the first bytes, taking more of them until it is whole."""
    want = _FIRST_READ
    with path.open("rb") as file:
        while True:
            file.seek(0)
            parser = _HeaderParser(path, file.read(min(want, size)))
            try:
                parser.run()
            except (struct.error, IndexError):
                if want >= size:
                    raise WeightsError(f"{path} is cut short or damaged: its header is not whole") from None
                want *= 4
            except (UnicodeDecodeError, ValueError) as error:
                raise WeightsError(f"{path} is damaged: {error}") from error
            else:
                return parser


class _HeaderParser:
    """One pass over the header. Running out of bytes raises struct.error or IndexError."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._data = data
        self._at = 0

    def run(self) -> None:
        if self._data[:4] != _MAGIC:
            raise WeightsError(f"{self.path} is not a GGUF file")
        self._at = 4
        version = self._take("I")
        if version not in _VERSIONS:
            raise UnsupportedModelError(
                f"{self.path} has GGUF version {version} or another byte order; Octavo reads versions 2 and 3"
            )
        num_tensors, num_keys = self._take("Q"), self._take("Q")
        for _ in range(num_keys):
            key = self._string()
            if key in self.metadata:
                raise ValueError(f"metadata key {key} appears twice")
            self.metadata[key] = self._value(self._take("I"))
        entries = {}
        for _ in range(num_tensors):
            name = self._string()
            if name in entries:
                raise ValueError(f"tensor {name} appears twice")
            dims = [self._take("Q") for _ in range(self._dimensions(name))]
            entries[name] = (tuple(reversed(dims)), self._take("I"), self._take("Q"))
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment!r} is not a power of two")
        data_start = -(-self._at // alignment) * alignment
        self.tensors = {
            name: GgufTensor(shape, type_id, data_start + offset) for name, (shape, type_id, offset) in entries.items()
        }

    def _dimensions(self, name: str) -> int:
        count: int = self._take("I")
        if not 1 <= count <= 4:
            raise ValueError(f"tensor {name} has {count} dimensions; GGUF allows 1 to 4")
        return count

    def _take(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        data, at, strings = self._data, self._at, []
        for _ in range(count):
            length = int.from_bytes(data[at : at + 8], "little")
            at += 8
            if at + length > len(data):
                raise IndexError
            strings.append(data[at : at + length].decode())
            at += length
        self._at = at
        return strings

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._take(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise ValueError(f"metadata has a value of unknown type {kind}")
        item, count = self._take("I"), self._take("Q")
        if item == _STRING:
            return self._strings(count)
        if item not in _SCALARS:
            raise ValueError(f"metadata has an array of items of type {item}")
        form = np.dtype(_SCALARS[item]).newbyteorder("<")
        if self._at + count * form.itemsize > len(self._data):
            raise IndexError
        values = np.frombuffer(self._data, form, count, self._at).tolist()
        self._at += count * form.itemsize
        return values
