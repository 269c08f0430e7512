"""Rounding to bfloat16. numpy has no such type, so its bits travel as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
        bits[part] = _round(flat[part].astype(np.float32, copy=False).view(np.uint32))
    return bits.reshape(array.shape)


def _round(word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    upper = word >> np.uint32(16)
    rounded = (word + ((upper & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        rounded = np.where(nan, upper | np.uint32(0x40), rounded)
    return rounded.astype(np.uint16)
