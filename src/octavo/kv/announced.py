"""Announced: the blocks that running sequences are about to publish, so that others may wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.kv.block import BlockError
from octavo.kv.hashing import BlockHash
from octavo.kv.sequence import SequenceBlocks


class Announced:
    """Hashes of blocks being computed, each with the number of sequences that compute it.

    Of a sequence those from ``num_published`` to ``num_announced`` are in it.
    """

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: Counter[BlockHash] = Counter()

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._hashes

    def announce(self, seq: SequenceBlocks, block_size: int) -> None:
        """Mutates: the full blocks of ``seq``'s tokens beyond its hit are being computed."""
        seq.num_announced = len(seq.tokens) // block_size
        seq.hash_blocks(seq.num_announced, block_size)
        self._hashes.update(seq.hashes[seq.num_published : seq.num_announced])

    def note_published(self, seq: SequenceBlocks) -> None:
        """Mutates: ``seq`` has published one block more, announced or not."""
        if seq.num_published < seq.num_announced:
            self._remove(seq.hashes[seq.num_published])
        seq.num_published += 1

    def retract(self, seq: SequenceBlocks) -> None:
        """Mutates: ``seq`` will not publish what it announced and has not published yet."""
        for block_hash in seq.hashes[seq.num_published : seq.num_announced]:
            self._remove(block_hash)
        seq.num_announced = seq.num_published

    def check(self, sequences: Iterable[SequenceBlocks]) -> None:
        """Raise BlockError unless this is what ``sequences`` announced and have not published. Read-only."""
        hashes: Counter[BlockHash] = Counter()
        for seq in sequences:
            hashes.update(seq.hashes[seq.num_published : seq.num_announced])
        if hashes != self._hashes:
            raise BlockError("the blocks announced are not those that running sequences are about to publish")

    def _remove(self, block_hash: BlockHash) -> None:
        self._hashes[block_hash] -= 1
        if not self._hashes[block_hash]:
            del self._hashes[block_hash]
