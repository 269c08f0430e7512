"""What must hold of a sequence that was admitted, whatever happened to it."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kv.block import NULL_BLOCK_ID, BlockError
from octavo.kv.sequence import SequenceBlocks
from octavo.kv.windows import first_block


def check_sequence(seq: SequenceBlocks, group_windows: Sequence[int | None], block_size: int) -> None:
    """Raise BlockError, saying which, if an invariant of ``seq`` is broken. Read-only."""
    ids = tuple([block.block_id for block in blocks] for blocks in seq.blocks)
    if ids != seq.block_ids or len({len(blocks) for blocks in seq.blocks}) != 1:
        raise BlockError(f"block_ids {seq.block_ids} are not {ids}, or groups differ in length")
    if not seq.num_published <= seq.num_computed // block_size <= seq.num_blocks:
        raise BlockError(
            f"{seq.num_published} published blocks, {seq.num_computed} computed tokens and "
            f"{seq.num_blocks} held blocks of {block_size} tokens contradict each other"
        )
    for window, block_ids in zip(group_windows, seq.block_ids, strict=True):
        first = first_block(seq.num_computed, window, block_size)
        nulls = [index for index, block_id in enumerate(block_ids) if block_id == NULL_BLOCK_ID]
        if nulls != list(range(first)):
            raise BlockError(
                f"entries {nulls} of a block table are null; with {seq.num_computed} computed tokens and a window of "
                f"{window} those before {first} must be"
            )
    for blocks in seq.blocks:
        for index, block in enumerate(blocks):
            if 0 < len(block.token_ids) < block_size:
                start, count = index * block_size, len(block.token_ids)
                computed = tuple(seq.tokens[start : min(start + count, seq.num_computed)])
                if index != seq.num_computed // block_size or block.token_ids != computed:
                    raise BlockError(
                        f"{block!r} stands in a block table as entry {index}, where it is not being filled"
                    )
