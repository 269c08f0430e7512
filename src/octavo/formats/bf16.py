"""bf16: keys and values as they are computed, rounded once to bfloat16. Exact in the sense of the engine."""

from __future__ import annotations

NAME = "bf16"


def bytes_per_vector(head_dim: int) -> int:
    """Bytes that one key or one value of one KV head takes."""
    return 2 * head_dim
