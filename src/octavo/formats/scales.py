"""float16 scales: what formats that have them do before they round."""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import Floats, Scales

LARGEST_FLOAT16 = 65504
"""The largest finite one."""


def scaled(x: Floats, most: int) -> tuple[Floats, Scales]:
    """``x [n, head_dim]`` in units of one scale for each vector, ``[n, 1]``, and within plus and minus ``most``.

    A scale is max|x| / most, rounded to float16 before x is divided by it, so that what is stored makes up for the
    rounding of its own scale. NaN counts as 0. The largest element counts as at most ``65504 * most``, and what is
    beyond, infinities too, becomes plus or minus ``most``. Where the scale rounds to 0, so does the vector.
    """
    x = np.where(np.isnan(x), np.float32(0), x)
    largest = np.minimum(np.abs(x).max(axis=1, keepdims=True), np.float32(LARGEST_FLOAT16 * most))
    scales = (largest / np.float32(most)).astype(np.float16)
    units = np.clip(x * inverse(scales), np.float32(-most), np.float32(most))
    return np.where(scales == 0, np.float32(0), units), scales


def inverse(scales: Scales) -> Floats:
    """``1 / scales`` in float32; 0 for a scale of 0."""
    wide = scales.astype(np.float32)
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
