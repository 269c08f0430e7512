"""The orthonormal Hadamard transform: it turns a vector so that single large elements are spread over all of them."""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import Floats


def hadamard(x: Floats) -> Floats:
    """``x [n, head_dim]`` turned, float32: in blocks of the largest power of two that divides head_dim.

    Each block is multiplied by the Sylvester matrix over the square root of its size, which is symmetric and
    orthogonal: lengths and dot products stay what they were but for rounding, and turning twice gives x back.

    The order of arithmetic is part of the result: sums and differences of elements 1, 2, 4, ... apart, then one
    multiplication. Elements that are not finite, or sums beyond float32, reach their whole block.
    """
    n, head_dim = x.shape
    size = head_dim & -head_dim
    turned = np.asarray(x, np.float32)
    stride = 1
    with np.errstate(over="ignore", invalid="ignore"):
        while stride < size:
            pairs = turned.reshape(n, head_dim // (2 * stride), 2, stride)
            first, second = pairs[:, :, 0], pairs[:, :, 1]
            turned = np.stack([first + second, first - second], axis=2)
            stride *= 2
        return turned.reshape(n, head_dim) * np.float32(1 / np.sqrt(size))
