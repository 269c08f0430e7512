"""PrefixHit: what is cached of a sequence, and whether that still holds."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.kv.block import Block, BlockError
from octavo.kv.sequence import SequenceBlocks


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What is cached of a sequence: ``num_tokens`` tokens, the last one of the sequence never among them.

    ``blocks[group]`` are full blocks to share, the null block where no window of the group reaches any more; ``tail``
    is one block per group to copy (or nothing). It begins with the tokens of the hit beyond the full blocks and may go
    on with others; somebody may hold it, and may be filling it.
    ``pending``: a running sequence is computing the next full block right now, so waiting saves computing it.
    Good until the pool changes: admit at once or ask again.
    """

    num_tokens: int
    blocks: tuple[list[Block], ...]
    tail: list[Block]
    pending: bool


def check_current(hit: PrefixHit, seq: SequenceBlocks, block_size: int, null_block: Block) -> None:
    """Raise BlockError if a block of ``hit`` holds something else than what was found for ``seq``. Read-only."""
    index = len(hit.blocks[0])
    common = tuple(seq.tokens[index * block_size : hit.num_tokens])
    if not (
        all(
            block.block_hash == block_hash or block is null_block
            for blocks in hit.blocks
            for block, block_hash in zip(blocks, seq.hashes, strict=False)
        )
        and all(
            block.parent_hash == seq.parent_hash(index) and block.token_ids[: len(common)] == common
            for block in hit.tail
        )
    ):
        raise BlockError("the hit is out of date: its blocks were reused since; call find_hit again")
