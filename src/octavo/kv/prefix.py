"""PrefixIndex: which published blocks hold given tokens, up to the first token that differs. Exact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from octavo.kv.block import Block, BlockError
from octavo.kv.children import Children
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.windows import first_block


class Found(NamedTuple):
    """A cached prefix of ``num_tokens`` tokens: full blocks, and perhaps the beginning of one more of each group.

    ``blocks[group]`` are the last full blocks: all of them with full attention, those of the window with one.
    ``tail`` is a block per group that begins with the tokens after them; it may go on otherwise.
    """

    num_tokens: int
    blocks: tuple[list[Block], ...]
    tail: list[Block]


class PrefixIndex:
    """Published blocks by (layer group, block hash). The hash finds a block, its tokens make it a hit.

    A partial block (a tail, fewer than block_size tokens) is published and found like a full one. Where no block holds
    all of the next tokens, the one that begins most alike is found by its tokens alone (:class:`Children`).
    """

    __slots__ = ("_block_size", "_blocks", "_children", "_full", "_groups", "_windowed")

    def __init__(self, *, block_size: int, group_windows: Sequence[int | None]) -> None:
        self._block_size = block_size
        self._groups = range(len(group_windows))
        self._full = [group for group in self._groups if group_windows[group] is None]
        self._windowed = {group: window for group, window in enumerate(group_windows) if window is not None}
        self._blocks: tuple[dict[BlockHash, Block], ...] = tuple({} for _ in self._groups)
        self._children = tuple(Children() for _ in self._groups)

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

            |oooo|oooo|oooo|oooo|oooo|ttz.|     full        o  in the index      t  begins a block, which goes on with z
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
            start = end * size
            common, tail = self.longest_start(
                hashes[end - 1] if end else root, tokens[start : min(max_tokens, start + size)]
            )
            num_tokens = start + common
            runs, gap = self._window_runs(root, hashes, tokens, end, num_tokens)
            if gap is None:
                break
            end = gap
        for column, group in enumerate(self._full):
            runs[group] = [row[column] for row in rows[:end]]
        return Found(num_tokens, tuple(runs[group] for group in self._groups), tail)

    def longest_start(self, parent_hash: BlockHash, token_ids: Sequence[int]) -> tuple[int, list[Block]]:
        """How many of ``token_ids`` a block of every group begins with, after ``parent_hash``, and these blocks.

        Of each group the one that begins most alike; what all of them share counts. Read-only.
        """
        asked = tuple(token_ids)
        length, row = len(asked), []
        for children in self._children:
            common, block = children.most_alike(parent_hash, asked)
            if block is None:
                return 0, []
            length = min(length, common)
            row.append(block)
        return length, row

    def covering(self, block: Block, group: int, parent_hash: BlockHash, token_ids: tuple[int, ...]) -> Block | None:
        """Another block that begins with all of ``token_ids``, so that ``block`` adds nothing to it. Read-only."""
        return self._children[group].beginning_with(parent_hash, token_ids, besides=block)

    def covered_by(self, block: Block) -> list[Block]:
        """What ``block``, published, makes needless: blocks whose tokens are the beginning of its own. Read-only."""
        assert block.parent_hash is not None, f"{block!r} is not published"
        return self._children[block.group].shorter(block.parent_hash, block.token_ids)

    def publish(
        self,
        block: Block,
        group: int,
        block_hash: BlockHash,
        parent_hash: BlockHash,
        token_ids: tuple[int, ...],
    ) -> Block | None:
        """Mutates: make ``block`` findable, unless another holds these tokens after this prefix.

        A block that its owner went on filling may be published again, with more tokens: these take the place of the
        fewer. Returns the block that is found from now on (``block`` or the one that was first), or None when the hash
        is taken by other tokens: then ``block`` is not published, and no descendant may be either.
        """
        if block.block_hash is not None:
            self.remove(block)
        found = self._blocks[group].setdefault(block_hash, block)
        if found is not block:
            return found if found.token_ids == token_ids and found.parent_hash == parent_hash else None
        block.set_content(block_hash, parent_hash, token_ids, group)
        self._children[group].add(parent_hash, block)
        return block

    def remove(self, block: Block) -> None:
        """Mutates: ``block`` is no longer found and forgets its content.

        The entry is deleted only if it still points at this block and not at one published later.
        """
        if block.block_hash is None or block.parent_hash is None:
            raise BlockError(f"{block!r} is not published, so it cannot be removed from the index")
        if self.holds(block):
            del self._blocks[block.group][block.block_hash]
            self._children[block.group].remove(block.parent_hash, block)
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
        """The longest prefix, of at most ``end`` full blocks, after which a block begins or whose last block is in the
        index, as a window of at least 2 needs it to be. A cold prompt is passed over here, quickly.
        """
        if any(window > 1 for window in self._windowed.values()):
            widest = max(self._windowed, key=self._windowed.__getitem__)
            blocks, children = self._blocks[widest], self._children[widest]
            while end and hashes[end - 1] not in blocks and hashes[end - 1] not in children:
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

    def check(self) -> None:
        """Raise BlockError if an entry disagrees with its block, or the two ways to find one disagree. Read-only."""
        for group, blocks in enumerate(self._blocks):
            for block_hash, block in blocks.items():
                parent, size = block.parent_hash, len(block.token_ids)
                if block.block_hash != block_hash or block.group != group or parent is None:
                    raise BlockError(f"the index of group {group} leads to {block!r}, of another hash or group")
                if not 0 < size <= self._block_size or hash_block(parent, block.token_ids) != block_hash:
                    raise BlockError(f"{block!r} is published under a hash that is not that of its tokens")
            self._check_children(group)

    def _check_children(self, group: int) -> None:
        count = 0
        for parent_hash, children in self._children[group]:
            count += len(children)
            tokens = [block.token_ids for block in children]
            if any(left >= right for left, right in pairwise(tokens)):
                raise BlockError(f"the blocks of group {group} after {parent_hash.hex()[:12]} are not in order")
            if any(block.parent_hash != parent_hash or not self.holds(block) for block in children):
                raise BlockError(f"what follows {parent_hash.hex()[:12]} in group {group} is not what was published")
        if count != len(self._blocks[group]):
            raise BlockError(f"{count} blocks of group {group} are found by their tokens, not all that are published")
