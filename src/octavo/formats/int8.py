"""int8: symmetric, one float16 scale for a vector: s = max|x| / 127, x ~ s * code with codes -127 to 127."""

from __future__ import annotations

NAME = "int8"
HEAD_DIM_STEP = 16
"""A head_dim must be a multiple of this."""


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scale."""
    return 2
