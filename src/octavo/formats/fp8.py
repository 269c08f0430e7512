"""fp8: e4m3 with one float16 scale for a vector: s = max|x| / 448, so that the NaN code never occurs.

The codes are those of OCP's 8-bit floating point specification (E4M3): no infinities, 448 the largest.
"""

from __future__ import annotations

NAME = "fp8"
HEAD_DIM_STEP = 16
"""A head_dim must be a multiple of this."""


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scale."""
    return 2
