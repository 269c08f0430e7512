"""fp8: e4m3 with one float16 scale for a vector: s = max|x| / 448, so that the NaN code never occurs.

The codes are those of OCP's 8-bit floating point specification (E4M3): no infinities, 448 the largest. NaN is stored as
0. Infinities, and what is beyond 448 * 65504, are stored as the largest number of either sign.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats.codec import Codes, Encoded, Floats, Scales
from octavo.formats.hadamard import hadamard
from octavo.formats.scales import scaled

NAME = "fp8"
HEAD_DIM_STEP = 16
"""A head_dim must be a multiple of this."""
BITS = 8
CODE_TYPE = np.uint8


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scale."""
    return 2


def encode_key(x: Floats) -> Encoded:
    """Keys, turned: single large elements, which keys have, would cost all others their precision."""
    return encode(hadamard(x))


def encode_value(x: Floats) -> Encoded:
    """Values as they are."""
    return encode(x)


def encode(x: Floats) -> Encoded:
    """Codes and scales ``[n, 1]`` of ``x [n, head_dim]``, rounded to nearest even; a zero keeps its sign.

    NaN gives code 0, an infinity plus or minus 448; a scale that rounds to 0 gives codes 0.
    """
    units, scales = scaled(x, 448)
    return Encoded(to_e4m3(units), scales)


def decode(codes: Codes, scales: Scales) -> Floats:
    """``scale * number of the code``, float32 ``[n, head_dim]``; exact."""
    return from_e4m3(codes) * scales.astype(np.float32)


def to_e4m3(y: Floats) -> npt.NDArray[np.uint8]:
    """The E4M3 code nearest to each number of magnitude 448 or less, ties to the even code, signs kept.

    Three bits follow the leading one, and the least exponent is -6: below 2**-6 steps stay 2**-9 (subnormals).
    """
    bits = np.ascontiguousarray(y, np.float32).view(np.uint32)
    exponent = np.maximum((bits >> 23 & 0xFF).astype(np.int32) - 127, -6)
    steps = np.rint(np.ldexp(np.abs(y), 3 - exponent)).astype(np.int32)  # 8 to 16, or from 0 below 2**-6
    codes: npt.NDArray[np.uint32] = (bits >> 31 << 7) + (8 * (exponent + 6) + steps).astype(np.uint32)
    return codes.astype(np.uint8)


def from_e4m3(codes: Codes) -> Floats:
    """What each code stands for, float32. 0x7f and 0xff are NaN."""
    return np.take(_NUMBERS, codes.astype(np.uint8))


def _numbers() -> Floats:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.ldexp(mantissa + 8.0 * (exponent > 0), np.maximum(exponent, 1) - 10)
    numbers: Floats = np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
    numbers[[0x7F, 0xFF]] = np.nan
    return numbers


_NUMBERS = _numbers()
