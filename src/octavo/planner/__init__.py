"""How many bytes a KV cache takes, known before anything is allocated.

:func:`solve` and :func:`compare` answer what a user asks before starting; :func:`plan` is what an engine starts with.
"""

from octavo.planner.compare import FormatRow, HeadSharing, attention_kind, compare, head_sharing
from octavo.planner.machine import free_memory
from octavo.planner.pool import MAX_BLOCKS, MemoryPlan, plan
from octavo.planner.sizes import (
    BLOCK_ALIGNMENT,
    blocks_of_load,
    bytes_per_block,
    bytes_per_token,
    kv_formats,
    needs_evaluation,
)
from octavo.planner.solve import PROCESS_BYTES, Plan, solve

__all__ = [
    "BLOCK_ALIGNMENT",
    "MAX_BLOCKS",
    "PROCESS_BYTES",
    "FormatRow",
    "HeadSharing",
    "MemoryPlan",
    "Plan",
    "attention_kind",
    "blocks_of_load",
    "bytes_per_block",
    "bytes_per_token",
    "compare",
    "free_memory",
    "head_sharing",
    "kv_formats",
    "needs_evaluation",
    "plan",
    "solve",
]
