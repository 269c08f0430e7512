"""int4: asymmetric, in groups of 32 elements with a float16 scale and a float16 minimum each.

x ~ minimum + s * code with codes 0 to 15, s = (max - min) / 15. Elements j and j + 16 of a group share a byte. Keys are
turned by an orthonormal Hadamard transform first, and queries with them, which leaves every score as it was and spreads
what single large elements would cost (QuaRot, Ashkboos 2024).
"""

from __future__ import annotations

NAME = "int4"
GROUP = 32
HEAD_DIM_STEP = GROUP
"""A head_dim must be a multiple of this."""


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim // 2


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scales and minima."""
    return head_dim // GROUP * 4
