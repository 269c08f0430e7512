"""bf16: keys and values as they are computed, rounded once to bfloat16. Exact in the sense of the engine.

A key that is not finite stays what it is. A value is made finite, the largest bfloat16 at most: a masked probability is
0, and 0 times infinity would reach the queries that do not see this value. A value that is NaN becomes the least one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats.codec import Codes, Encoded, Floats, Scales

NAME = "bf16"
HEAD_DIM_STEP = 16
"""A head_dim must be a multiple of this."""
BITS = 16
CODE_TYPE = np.uint16
LARGEST = np.float32(3.3895314e38)
"""The largest finite bfloat16."""


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return 2 * head_dim


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scales: it has none."""
    return 0


def encode_key(x: Floats) -> Encoded:
    """Keys as they are."""
    return encode(x)


def encode_value(x: Floats) -> Encoded:
    """Values within the finite bfloat16 numbers; NaN becomes the least of them."""
    return encode(np.where(np.isnan(x), -LARGEST, np.clip(x, -LARGEST, LARGEST)))


def encode(x: Floats) -> Encoded:
    """The upper halves of ``x [n, head_dim]``, rounded to nearest even. Infinities stay, NaN stays a (quiet) NaN."""
    codes = round_bits(np.ascontiguousarray(x, np.float32).view(np.uint32))
    return Encoded(codes, np.empty((len(x), 0), np.float16))


def decode(codes: Codes, scales: Scales) -> Floats:
    """Exactly what ``codes`` stand for, float32 ``[n, head_dim]``."""
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_bits(word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """From the bits of float32 to those of bfloat16, nearest even; a NaN keeps its sign and leading payload bits."""
    upper = word >> np.uint32(16)
    rounded = (word + ((upper & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        rounded = np.where(nan, upper | np.uint32(0x40), rounded)
    return rounded.astype(np.uint16)
