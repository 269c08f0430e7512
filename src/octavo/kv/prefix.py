"""PrefixIndex: which published block holds given tokens after a given prefix. Exact, tails included."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash, hash_block


class PrefixIndex:
    """Published blocks by (layer group, block hash). The hash finds a block, its tokens make it a hit.

    A tail is a block with fewer than block_size tokens and is found like any other; the index only remembers
    which lengths of tail exist after a prefix, so that a lookup tries those and no more.
    """

    __slots__ = ("_block_size", "_blocks", "_tail_lengths")

    def __init__(self, *, block_size: int, num_groups: int) -> None:
        self._block_size = block_size
        self._blocks: tuple[dict[BlockHash, Block], ...] = tuple({} for _ in range(num_groups))
        self._tail_lengths: dict[BlockHash, dict[int, int]] = {}  # parent hash -> length -> how many tails

    def __len__(self) -> int:
        """Published blocks, of all groups."""
        return sum(map(len, self._blocks))

    def holds(self, block: Block) -> bool:
        """Whether ``block``'s hash leads to ``block`` itself. Read-only."""
        return block.block_hash is not None and self._blocks[block.group].get(block.block_hash) is block

    def longest_hit(
        self, root: BlockHash, hashes: Sequence[BlockHash], tokens: Sequence[int], max_blocks: int
    ) -> tuple[list[Block], ...]:
        """The longest run of first full blocks that every group has: a list per group. Read-only.

        ``hashes[i]`` is the hash of the i-th block of ``tokens``; at most ``max_blocks`` are looked for.
        """
        hit: tuple[list[Block], ...] = tuple([] for _ in self._blocks)
        parent, size = root, self._block_size
        for index in range(max_blocks):
            block_hash = hashes[index]
            row = self._row(block_hash, parent, tuple(tokens[index * size : (index + 1) * size]))
            if not row:
                break
            for blocks, block in zip(hit, row, strict=True):
                blocks.append(block)
            parent = block_hash
        return hit

    def longest_tail(self, parent_hash: BlockHash, token_ids: Sequence[int]) -> list[Block]:
        """The longest tail after ``parent_hash`` that begins ``token_ids``: a block per group. Read-only."""
        for length in sorted(self._tail_lengths.get(parent_hash, ()), reverse=True):
            if length <= len(token_ids):
                asked = tuple(token_ids[:length])
                if row := self._row(hash_block(parent_hash, asked), parent_hash, asked):
                    return row
        return []

    def publish(
        self,
        block: Block,
        group: int,
        block_hash: BlockHash,
        parent_hash: BlockHash,
        token_ids: tuple[int, ...],
    ) -> Block | None:
        """Mutates: make ``block`` findable, unless another holds these tokens after this prefix.

        Returns the block that is found from now on (``block`` or the one that was first), or None when the
        hash is taken by other tokens: then nothing changed, and no descendant may be published either.
        """
        found = self._blocks[group].setdefault(block_hash, block)
        if found is not block:
            return found if found.token_ids == token_ids and found.parent_hash == parent_hash else None
        block.set_content(block_hash, parent_hash, token_ids, group)
        if len(token_ids) < self._block_size:
            lengths = self._tail_lengths.setdefault(parent_hash, {})
            lengths[len(token_ids)] = lengths.get(len(token_ids), 0) + 1
        return block

    def remove(self, block: Block) -> None:
        """Mutates: ``block`` is no longer found and forgets its content.

        The entry is deleted only if it still points at this block and not at one published later.
        """
        if block.block_hash is None or block.parent_hash is None:
            raise BlockError(f"{block!r} is not published, so it cannot be removed from the index")
        if self.holds(block):
            del self._blocks[block.group][block.block_hash]
            if len(block.token_ids) < self._block_size:
                self._forget_tail(block.parent_hash, len(block.token_ids))
        block.reset_content()

    def _row(self, block_hash: BlockHash, parent_hash: BlockHash, token_ids: tuple[int, ...]) -> list[Block]:
        """The block with this content of every group, or nothing if one of them lacks it."""
        row = []
        for blocks in self._blocks:
            block = blocks.get(block_hash)
            if block is None or block.token_ids != token_ids or block.parent_hash != parent_hash:
                return []
            row.append(block)
        return row

    def _forget_tail(self, parent_hash: BlockHash, length: int) -> None:
        lengths = self._tail_lengths[parent_hash]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._tail_lengths[parent_hash]

    def check(self) -> None:
        """Raise BlockError if an entry disagrees with its block, or a length with the tails. Read-only."""
        lengths: dict[BlockHash, dict[int, int]] = {}
        for group, blocks in enumerate(self._blocks):
            for block_hash, block in blocks.items():
                parent, size = block.parent_hash, len(block.token_ids)
                if block.block_hash != block_hash or block.group != group or parent is None:
                    raise BlockError(f"the index of group {group} leads to {block!r}, of another hash or group")
                if not 0 < size <= self._block_size or hash_block(parent, block.token_ids) != block_hash:
                    raise BlockError(f"{block!r} is published under a hash that is not that of its tokens")
                if size < self._block_size:
                    counts = lengths.setdefault(parent, {})
                    counts[size] = counts.get(size, 0) + 1
        if lengths != self._tail_lengths:
            raise BlockError("the lengths of tails that the index remembers are not those of its tails")
