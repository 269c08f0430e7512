"""Children: the published blocks that follow a prefix, sorted, so that the one that begins most alike is found."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from octavo.kv.block import Block
from octavo.kv.hashing import BlockHash

_tokens = attrgetter("token_ids")


class Children:
    """Of one layer group: the published blocks after each parent hash, full ones and partial ones, by their tokens.

    In sorted order, what shares most of its beginning with given tokens stands right beside the place where these
    would stand. So a lookup is a binary search, however many blocks follow a prefix and however alike they begin.
    """

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        self._sorted: dict[BlockHash, list[Block]] = {}

    def __contains__(self, parent_hash: BlockHash) -> bool:
        return parent_hash in self._sorted

    def __iter__(self) -> Iterator[tuple[BlockHash, list[Block]]]:
        yield from self._sorted.items()

    def add(self, parent_hash: BlockHash, block: Block) -> None:
        """Mutates. No other block after ``parent_hash`` has the same tokens."""
        blocks = self._sorted.setdefault(parent_hash, [])
        blocks.insert(bisect_left(blocks, block.token_ids, key=_tokens), block)

    def remove(self, parent_hash: BlockHash, block: Block) -> None:
        """Mutates. ``block`` was added and has the same tokens still."""
        blocks = self._sorted[parent_hash]
        del blocks[bisect_left(blocks, block.token_ids, key=_tokens)]
        if not blocks:
            del self._sorted[parent_hash]

    def most_alike(self, parent_hash: BlockHash, token_ids: tuple[int, ...]) -> tuple[int, Block | None]:
        """How many of ``token_ids`` a block after ``parent_hash`` begins with at most, and which. Read-only."""
        blocks = self._sorted.get(parent_hash, [])
        at = bisect_left(blocks, token_ids, key=_tokens)
        most, found = 0, None
        for block in blocks[max(at - 1, 0) : at + 1]:
            if (common := num_common(block.token_ids, token_ids)) > most:
                most, found = common, block
        return most, found

    def beginning_with(self, parent_hash: BlockHash, token_ids: tuple[int, ...], *, besides: Block) -> Block | None:
        """A block after ``parent_hash``, beside this one, that begins with all of ``token_ids``. Read-only."""
        blocks = self._sorted.get(parent_hash, [])
        at = bisect_left(blocks, token_ids, key=_tokens)
        for block in blocks[at : at + 2]:
            if block is not besides and block.token_ids[: len(token_ids)] == token_ids:
                return block
        return None

    def shorter(self, parent_hash: BlockHash, token_ids: tuple[int, ...]) -> list[Block]:
        """Blocks after ``parent_hash`` whose tokens begin ``token_ids``, but are not all of them. Read-only."""
        blocks = self._sorted.get(parent_hash, [])
        found, rest = [], token_ids[:-1]
        # Between a beginning of ``rest`` and ``rest`` itself stands nothing but what has the same beginning.
        while rest and (at := bisect_right(blocks, rest, key=_tokens)):
            common = num_common(blocks[at - 1].token_ids, rest)
            if common == len(blocks[at - 1].token_ids):
                found.append(blocks[at - 1])
                common -= 1
            rest = rest[:common]
        return found


def num_common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Tokens that both begin with."""
    if left == right:
        return len(left)
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
