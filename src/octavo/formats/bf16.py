"""bf16: keys and values as they are computed, rounded once to bfloat16. Exact in the sense of the engine."""

from __future__ import annotations

NAME = "bf16"
HEAD_DIM_STEP = 16
"""A head_dim must be a multiple of this."""


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return 2 * head_dim


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scales: it has none."""
    return 0
