"""int4: asymmetric, in groups of 32 elements with a float16 scale and a float16 minimum each.

x ~ minimum + s * code with codes 0 to 15, s = (max - min) / 15: the arithmetic of KIVI (Liu 2024), but grouped within a
token for keys too, so that a token is written once, when it is computed. Elements j and j + 16 of a group share a byte.

Keys are turned by an orthonormal Hadamard transform first, and queries with them, which leaves every score as it was
and spreads what single large elements would cost (QuaRot, Ashkboos 2024).

NaN is stored as 0, and what is beyond 65504, infinities too, as plus or minus 65504. A key is turned before that: one
infinity or NaN reaches every element it is mixed with.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import Codes, Encoded, Floats, Scales, as_is
from octavo.formats.hadamard import hadamard
from octavo.formats.scales import LARGEST_FLOAT16, inverse

NAME = "int4"
GROUP = 32
HEAD_DIM_STEP = GROUP
"""A head_dim must be a multiple of this."""
BITS = 4
CODE_TYPE = np.uint8
prepare_value = as_is


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim // 2


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scales and minima."""
    return head_dim // GROUP * 4


def prepare_key(x: Floats) -> Floats:
    """Keys, turned. Scores stay what they were when queries are turned alike."""
    return hadamard(x)


def encode(x: Floats) -> Encoded:
    """Codes and scales ``[n, 2 * head_dim / 32]`` of ``x [n, head_dim]``: scale and minimum of each group in turn.

    NaN counts as 0, and what is beyond plus and minus 65504 as that. A zero has no sign here, or the minimum of a group
    with zeros of both signs would depend on the order they are compared in. A scale that rounds to 0 gives codes 0.
    """
    most = np.float32(LARGEST_FLOAT16)  # minima are stored in float16
    x = np.clip(np.where(np.isnan(x), np.float32(0), x), -most, most) + np.float32(0)
    n, head_dim = x.shape
    groups = x.reshape(n, head_dim // GROUP, GROUP)
    least = groups.min(axis=2, keepdims=True)
    minima = least.astype(np.float16)
    scales = ((groups.max(axis=2, keepdims=True) - least) / np.float32(15)).astype(np.float16)
    codes = np.clip(np.rint((groups - minima.astype(np.float32)) * inverse(scales)), 0, 15)
    pairs = np.concatenate([scales, minima], axis=2)
    return Encoded(codes.astype(np.uint8).reshape(n, head_dim), pairs.reshape(n, 2 * head_dim // GROUP))


def decode(codes: Codes, scales: Scales) -> Floats:
    """``minimum + scale * code``, float32 ``[n, head_dim]``. Keys come back turned."""
    n, head_dim = codes.shape
    pairs = scales.astype(np.float32).reshape(n, head_dim // GROUP, 2)
    groups = codes.astype(np.float32).reshape(n, head_dim // GROUP, GROUP)
    return (pairs[..., 1:] + pairs[..., :1] * groups).reshape(n, head_dim)
