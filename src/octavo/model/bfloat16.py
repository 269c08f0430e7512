"""Rounding to bfloat16. numpy has no such type, so its bits travel as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.bf16 import round_bits

_CHUNK = 1 << 18
"""Elements rounded at a time: the scratch stays in the processor's cache, and small beside any tensor."""


def to_bfloat16(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Bits of ``array`` (float16 or float32, any shape) as bfloat16, C-contiguous uint16 of the same shape.

    Rounds to nearest, ties to even; infinities and signs stay; a NaN stays a NaN (quiet, its sign and leading
    payload bits kept).
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = np.empty(flat.size, np.uint16)
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        bits[part] = round_bits(flat[part].astype(np.float32, copy=False).view(np.uint32))
    return bits.reshape(array.shape)
