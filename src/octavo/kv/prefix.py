"""PrefixIndex: which published block holds given tokens after a given prefix. Exact, tails included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.windows import first_block


class Found(NamedTuple):
    """A cached prefix: ``num_blocks`` full blocks and perhaps a tail, a block per group.

    ``blocks[group]`` are the last full blocks: all of them with full attention, those of the window with one.
    """

    num_blocks: int
    blocks: tuple[list[Block], ...]
    tail: list[Block]


class PrefixIndex:
    """Published blocks by (layer group, block hash). The hash finds a block, its tokens make it a hit.

    A tail is a block with fewer than block_size tokens and is found like any other; the index only remembers
    which lengths of tail exist after a prefix, so that a lookup tries those and no more.
    """

    __slots__ = ("_block_size", "_blocks", "_full", "_groups", "_tail_lengths", "_windowed")

    def __init__(self, *, block_size: int, group_windows: Sequence[int | None]) -> None:
        self._block_size = block_size
        self._groups = range(len(group_windows))
        self._full = [group for group in self._groups if group_windows[group] is None]
        self._windowed = {group: window for group, window in enumerate(group_windows) if window is not None}
        self._blocks: tuple[dict[BlockHash, Block], ...] = tuple({} for _ in self._groups)
        self._tail_lengths: dict[BlockHash, dict[int, int]] = {}  # parent hash -> length -> how many tails

    def __len__(self) -> int:
        """Published blocks, of all groups."""
        return sum(map(len, self._blocks))

    def holds(self, block: Block) -> bool:
        """Whether ``block``'s hash leads to ``block`` itself. Read-only."""
        return block.block_hash is not None and self._blocks[block.group].get(block.block_hash) is block

    def longest_hit(
        self, root: BlockHash, hashes: Sequence[BlockHash], tokens: Sequence[int], max_tokens: int
    ) -> Found:
        """The longest prefix of ``tokens``, of at most ``max_tokens``, that is cached in every group. Read-only.

        A group with full attention needs all its blocks, one with a window those that the next query sees (here of
        three blocks)::

            |oooo|oooo|oooo|oooo|oooo|tt..|     full        o  in the index      t  a tail
            |    |oooo| x  |oooo|oooo|tt..|     window      x  evicted: no prefix may need it

        Full attention bounds the prefix. From there the blocks of the windows are looked for from right to left; where
        one is missing, the prefix can only end before it. So each block is looked up once, and seldom more of them
        than the windows need. ``hashes[i]`` is the hash of the i-th block of ``tokens``.
        """
        size = self._block_size
        end = max_tokens // size
        rows: list[list[Block]] = []
        if self._full:
            rows = self._longest_run(root, hashes, tokens, end)
            end = len(rows)
        while True:
            end = self._last_plausible(hashes, end)
            tail = self.longest_tail(
                hashes[end - 1] if end else root, tokens[end * size : min(max_tokens, end * size + size)]
            )
            num_tokens = end * size + (len(tail[0].token_ids) if tail else 0)
            runs, gap = self._window_runs(root, hashes, tokens, end, num_tokens)
            if gap is None:
                break
            end = gap
        for column, group in enumerate(self._full):
            runs[group] = [row[column] for row in rows[:end]]
        return Found(end, tuple(runs[group] for group in self._groups), tail)

    def longest_tail(self, parent_hash: BlockHash, token_ids: Sequence[int]) -> list[Block]:
        """The longest tail after ``parent_hash`` that begins ``token_ids``: a block per group. Read-only."""
        for length in sorted(self._tail_lengths.get(parent_hash, ()), reverse=True):
            if length <= len(token_ids):
                asked = tuple(token_ids[:length])
                if row := self._row(self._groups, hash_block(parent_hash, asked), parent_hash, asked):
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

    def _longest_run(
        self, root: BlockHash, hashes: Sequence[BlockHash], tokens: Sequence[int], max_blocks: int
    ) -> list[list[Block]]:
        """First blocks that every group with full attention has: a row of those groups' blocks for each."""
        rows: list[list[Block]] = []
        parent, size = root, self._block_size
        for index in range(max_blocks):
            block_hash = hashes[index]
            row = self._row(self._full, block_hash, parent, tuple(tokens[index * size : (index + 1) * size]))
            if not row:
                break
            rows.append(row)
            parent = block_hash
        return rows

    def _last_plausible(self, hashes: Sequence[BlockHash], end: int) -> int:
        """The longest prefix, of at most ``end`` full blocks, after which there is a tail or whose last block is in the
        index, as a window of at least 2 needs it to be. A cold prompt is passed over here, quickly.
        """
        if any(window > 1 for window in self._windowed.values()):
            blocks = self._blocks[max(self._windowed, key=self._windowed.__getitem__)]
            while end and hashes[end - 1] not in blocks and hashes[end - 1] not in self._tail_lengths:
                end -= 1
        return end

    def _window_runs(
        self, root: BlockHash, hashes: Sequence[BlockHash], tokens: Sequence[int], end: int, num_tokens: int
    ) -> tuple[dict[int, list[Block]], int | None]:
        """What a prefix of ``end`` full blocks and ``num_tokens`` tokens needs in each group with a window, and which
        block of that is missing, the last one.
        """
        size = self._block_size
        firsts = {group: first_block(num_tokens, window, size) for group, window in self._windowed.items()}
        runs: dict[int, list[Block]] = {group: [] for group in firsts}
        for index in range(end - 1, min(firsts.values(), default=end) - 1, -1):
            groups = [group for group, first in firsts.items() if first <= index]
            parent = hashes[index - 1] if index else root
            row = self._row(groups, hashes[index], parent, tuple(tokens[index * size : (index + 1) * size]))
            if not row:
                return runs, index
            for group, block in zip(groups, row, strict=True):
                runs[group].append(block)
        for run in runs.values():
            run.reverse()
        return runs, None

    def _row(
        self, groups: Iterable[int], block_hash: BlockHash, parent_hash: BlockHash, token_ids: tuple[int, ...]
    ) -> list[Block]:
        """The block with this content of each of ``groups``, or nothing if one of them lacks it."""
        row = []
        for group in groups:
            block = self._blocks[group].get(block_hash)
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
