"""int4: asymmetric, in groups of 32 elements with a float16 scale and a float16 minimum each.

x ~ minimum + s * code with codes 0 to 15, s = (max - min) / 15: the arithmetic of KIVI (Liu 2024), but grouped within a
token for keys too, so that a token is written once, when it is computed. Elements j and j + 16 of a group share a byte.

Keys are turned by an orthonormal Hadamard transform first, and queries with them, which leaves every score as it was
and spreads what single large elements would cost (QuaRot, Ashkboos 2024). Their range may leave
out a little at its ends.

NaN is stored as 0, and what is beyond 65504, infinities too, as plus or minus 65504. A key is turned before that: one
infinity or NaN reaches every element it is mixed with.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import Codes, Encoded, Floats, Scales
from octavo.formats.hadamard import hadamard
from octavo.formats.scales import LARGEST_FLOAT16, inverse

NAME = "int4"
GROUP = 32
HEAD_DIM_STEP = GROUP
"""A head_dim must be a multiple of this."""
BITS = 4
CODE_TYPE = np.uint8
CUTS = (0.0, 0.03, 0.07)
"""Shares of a group's range that a key may leave out at either end."""


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim // 2


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scales and minima."""
    return head_dim // GROUP * 4


def encode_key(x: Floats) -> Encoded:
    """Keys, turned, with the range of each group that leaves the least squared error.

    Of the ranges that leave out a share in :data:`CUTS` at the lower end, and one at the upper end, the first of the
    best is taken; errors are summed in float32, element by element. It takes a seventh off the error of keys; values
    gain nothing by it.
    """
    groups = _groups(hadamard(x))
    low, high = _ends(groups)
    width = high - low
    ranges = []
    for lower in CUTS:
        minima = (low + width * np.float32(lower)).astype(np.float16)
        for upper in CUTS:
            rest = high - width * np.float32(upper) - minima.astype(np.float32)
            ranges.append((minima, (np.maximum(rest, np.float32(0)) / np.float32(15)).astype(np.float16)))
    errors = np.stack([_error(groups, minima, scales) for minima, scales in ranges])
    best = errors.argmin(axis=0)
    minima, scales = (np.choose(best, list(of_ranges)) for of_ranges in zip(*ranges, strict=True))
    return _written(groups, minima, scales)


def encode_value(x: Floats) -> Encoded:
    """Values, over the whole range of each group: s = (max - min) / 15."""
    return encode(x)


def encode(x: Floats) -> Encoded:
    """Codes and scales ``[n, 2 * head_dim / 32]`` of ``x [n, head_dim]``: scale and minimum of each group in turn.

    NaN counts as 0, and what is beyond plus and minus 65504 as that. A zero has no sign here, or the minimum of a group
    with zeros of both signs would depend on the order they are compared in. A scale that rounds to 0 gives codes 0.
    """
    groups = _groups(x)
    low, high = _ends(groups)
    return _written(groups, low.astype(np.float16), ((high - low) / np.float32(15)).astype(np.float16))


def _groups(x: Floats) -> Floats:
    """``[n, groups, 32]``, within the range of float16 in which minima are stored."""
    most = np.float32(LARGEST_FLOAT16)
    x = np.clip(np.where(np.isnan(x), np.float32(0), x), -most, most) + np.float32(0)
    return x.reshape(len(x), x.shape[1] // GROUP, GROUP)


def _ends(groups: Floats) -> tuple[Floats, Floats]:
    return groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)


def _codes(groups: Floats, minima: Scales, scales: Scales) -> Floats:
    units = (groups - minima.astype(np.float32)) * inverse(scales)
    return np.asarray(np.clip(np.rint(units), 0, 15), np.float32)


def _error(groups: Floats, minima: Scales, scales: Scales) -> Floats:
    """Squared error of each group ``[n, groups, 1]``."""
    read = _codes(groups, minima, scales) * scales.astype(np.float32) + minima.astype(np.float32)
    total = np.zeros(groups.shape[:2], np.float32)
    for element in range(GROUP):
        off = read[:, :, element] - groups[:, :, element]
        total += off * off
    return total[:, :, None]


def _written(groups: Floats, minima: Scales, scales: Scales) -> Encoded:
    n, count, _ = groups.shape
    codes = _codes(groups, minima, scales).astype(np.uint8)
    return Encoded(codes.reshape(n, count * GROUP), np.concatenate([scales, minima], axis=2).reshape(n, 2 * count))


def decode(codes: Codes, scales: Scales) -> Floats:
    """``minimum + scale * code``, float32 ``[n, head_dim]``."""
    n, head_dim = codes.shape
    pairs = scales.astype(np.float32).reshape(n, head_dim // GROUP, 2)
    groups = codes.astype(np.float32).reshape(n, head_dim // GROUP, GROUP)
    return (pairs[..., 1:] + pairs[..., :1] * groups).reshape(n, head_dim)
