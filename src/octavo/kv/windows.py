"""Which blocks a sliding window needs: the rule that the manager follows and the planner counts with.

A query at position p of a layer with window w sees the positions p - w + 1 to p. The next query of a sequence
of which ``num_computed`` tokens are computed is at that position, so with block_size 4, a window of 6, 9 tokens
computed and 3 more in this step::

    |oooo|oooo|o...|    o  computed          positions 4 to 8 are what the query at 9 sees of those computed,
     null  ^    .  to compute                so block 0 is the null block, and 2 blocks are held
         first_block

``None`` stands for full attention: every block is needed.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence


def first_block(num_computed: int, window: int | None, block_size: int) -> int:
    """Index of the first block that queries from position ``num_computed`` on see; those before are given back."""
    if window is None or num_computed < window:
        return 0
    return (num_computed - window + 1) // block_size


def blocks_held(num_tokens: int, window: int | None, *, block_size: int, max_step_tokens: int) -> int:
    """The most blocks that one sequence of ``num_tokens`` tokens holds at once in a group of layers of ``window``.

    It computes at most ``max_step_tokens`` at a time, and holds most while a step is computed: the blocks of the
    ``window - 1`` positions before the step and of the step. The bound is exact: a sequence that is long enough
    reaches it where the first of these positions is the last of its block.
    """
    blocks = -(-num_tokens // block_size)
    if window is None:
        return blocks
    return min(blocks, _most_in_a_step(window, block_size, max_step_tokens))


def longest_sequence(
    num_blocks: int, windows: Sequence[int | None], *, block_size: int, max_step_tokens: int
) -> int | None:
    """The most tokens of one sequence that ``num_blocks`` blocks can hold, ``windows`` giving that of each group.

    None: any number, since every group has a window and there are blocks enough for all of them.
    """
    most = [num_blocks + 1 if w is None else _most_in_a_step(w, block_size, max_step_tokens) for w in windows]
    if sum(most) <= num_blocks:
        return None
    lengths = range(1, num_blocks + 1)
    fitting = bisect.bisect_right(lengths, num_blocks, key=lambda n: sum(min(n, limit) for limit in most))
    return fitting * block_size


def _most_in_a_step(window: int, block_size: int, max_step_tokens: int) -> int:
    """The most blocks over which ``window - 1 + max_step_tokens`` positions can lie."""
    return -(-(window + max_step_tokens - 2) // block_size) + 1
