"""How many bytes a KV cache takes, known before anything is allocated."""

from octavo.planner.pool import MAX_BLOCKS, MemoryPlan, plan
from octavo.planner.sizes import BLOCK_ALIGNMENT, bytes_per_block, bytes_per_token, kv_formats

__all__ = [
    "BLOCK_ALIGNMENT",
    "MAX_BLOCKS",
    "MemoryPlan",
    "bytes_per_block",
    "bytes_per_token",
    "kv_formats",
    "plan",
]
