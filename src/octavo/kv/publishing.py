"""Publisher: lets others find what a sequence has computed."""

from __future__ import annotations

from octavo.kv.announced import Announced
from octavo.kv.block import NULL_BLOCK_ID, Block
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.loading import Offload
from octavo.kv.pool import BlockPool
from octavo.kv.prefix import PrefixIndex
from octavo.kv.residency import Watcher
from octavo.kv.sequence import SequenceBlocks


class Publisher:
    """Publishes the blocks of sequences that may write the cache, once they are computed.

    A block that is not full yet is published as far as it goes, and its owner goes on filling it: what was written of
    it never changes. Published again with more tokens, it is found by all of them. With block_size 4, a prompt of 6
    tokens and an answer::

        |abcd|ef..|      the prompt is computed: ef is published
        |abcd|efgh|ij..|    two tokens later: efgh takes the place of ef
        |abcd|efgh|ij..|    the sequence ends: ij is published

    What begins another published block adds nothing: it is not published, and gives up its block to who needs memory.
    """

    __slots__ = ("_announced", "_block_size", "_index", "_offload", "_pool", "_watcher")

    def __init__(
        self,
        index: PrefixIndex,
        pool: BlockPool,
        announced: Announced,
        watcher: Watcher,
        offload: Offload,
        *,
        block_size: int,
    ) -> None:
        self._index = index
        self._pool = pool
        self._announced = announced
        self._watcher = watcher
        self._offload = offload
        self._block_size = block_size

    def publish_full_blocks(self, seq: SequenceBlocks) -> None:
        """Mutates: the full blocks that are computed, or loaded, and not published yet."""
        end = seq.num_computed // self._block_size
        assert end <= seq.num_blocks, f"{end} full blocks computed, {seq.num_blocks} held"
        seq.hash_blocks(end, self._block_size)
        for index in range(seq.num_published, end):
            token_ids = tuple(seq.tokens[index * self._block_size : (index + 1) * self._block_size])
            for group, blocks in enumerate(seq.blocks):
                block = blocks[index]
                if block.block_id == NULL_BLOCK_ID:
                    continue  # not loaded: a window has passed it
                found = self._publish(block, group, seq.hashes[index], seq.parent_hash(index), token_ids)
                if found is None:
                    # Two contents with one hash. What descends from the second must not be found under the
                    # first.
                    self._announced.retract(seq)
                    seq.write_cache = False
                    return
                self._pool.retain([found], block.keep_until)
                if found is block:
                    self._offload.published(seq.root, block)
                elif seq.read_cache:
                    self._pool.touch([found])
                    self._pool.free([block])
                    seq.replace_block(group, index, found)
            self._announced.note_published(seq)

    def publish_tail(self, seq: SequenceBlocks) -> None:
        """Mutates: the computed tokens beyond the last full block, all full blocks being published."""
        index = seq.num_published
        assert index == seq.num_computed // self._block_size, "publish computed tokens before the tail"
        token_ids = tuple(seq.tokens[index * self._block_size : seq.num_computed])
        if not token_ids:
            return
        parent_hash = seq.parent_hash(index)
        block_hash = hash_block(parent_hash, token_ids)
        for group, blocks in enumerate(seq.blocks):
            block = blocks[index]
            longer = self._index.covering(block, group, parent_hash, token_ids)
            if longer is None:
                self._publish(block, group, block_hash, parent_hash, token_ids)
                continue
            self._pool.retain([longer], block.keep_until)
            if block.block_hash is not None:
                self._index.remove(block)  # what was published of it before adds nothing either

    def _publish(
        self, block: Block, group: int, block_hash: BlockHash, parent_hash: BlockHash, token_ids: tuple[int, ...]
    ) -> Block | None:
        """Mutates. As :meth:`PrefixIndex.publish`; free blocks that begin like ``block`` are no longer published."""
        was_published = block.block_hash is not None
        found = self._index.publish(block, group, block_hash, parent_hash, token_ids)
        if found is block:
            if not was_published:
                self._watcher.published(block.block_id)
            for shorter in self._index.covered_by(block):
                self._pool.retain([block], shorter.keep_until)
                if shorter.ref_count == 0:
                    self._pool.supersede(shorter, block)
        return found
