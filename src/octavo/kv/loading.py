"""What may follow a hit from elsewhere: which blocks a longer prefix needs, and how far those that there are go.

Blocks are written (group, index). With full attention a prefix of n blocks needs all of them, with a window those that
the query after it sees; what the hit holds is there already. Here of a hit of two blocks and a prefix of five::

    |hhhh|hhhh|llll|llll|llll|      full      h  of the hit
    |hhhh|hhhh|    |llll|llll|      window    l  to load
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.kv.block import Block
from octavo.kv.hashing import BlockHash
from octavo.kv.windows import first_block


class LoadTarget(NamedTuple):
    """A block of a sequence that is to be read from elsewhere: ``place`` (group, index) in the block tables, and which
    it is.
    """

    place: tuple[int, int]
    block_id: int


class Offload:
    """Told which blocks could be kept elsewhere. This one keeps none. It must change nothing here."""

    def published(self, root: BlockHash, block: Block) -> None:
        """A full block was computed under ``root``, and holds what it says until somebody else gets it."""

    def used(self, root: BlockHash, blocks: Sequence[Block]) -> None:
        """Published, full blocks that somebody begins or ceases to hold."""


def blocks_to_load(
    windows: Sequence[int | None], block_size: int, num_hit_blocks: int, num_blocks: int
) -> list[tuple[int, int]]:
    """What a prefix of ``num_blocks`` blocks needs beyond a hit of ``num_hit_blocks``, the first positions first."""
    firsts = [first_block(num_blocks * block_size, window, block_size) for window in windows]
    return [
        (group, index)
        for index in range(num_hit_blocks, num_blocks)
        for group, first in enumerate(firsts)
        if first <= index
    ]


def longest_prefix(
    windows: Sequence[int | None],
    block_size: int,
    num_hit_blocks: int,
    most_blocks: int,
    has: Callable[[int, int], bool],
) -> int:
    """The most blocks, up to ``most_blocks``, of a prefix that needs nothing that the hit or ``has`` does not have."""
    full = [group for group, window in enumerate(windows) if window is None]
    windowed = [(group, window) for group, window in enumerate(windows) if window is not None]
    end = num_hit_blocks if full else most_blocks
    while full and end < most_blocks and all(has(group, end) for group in full):
        end += 1
    while end > num_hit_blocks:
        firsts = [(group, first_block(end * block_size, window, block_size)) for group, window in windowed]
        gaps = (
            index
            for index in range(end - 1, num_hit_blocks - 1, -1)
            for group, first in firsts
            if first <= index and not has(group, index)
        )
        gap = next(gaps, None)
        if gap is None:
            break
        end = gap
    return end
