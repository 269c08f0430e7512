"""StoredPrefixes: stored blocks seen as what they are to people: beginnings of prompts.

::

    root -- A -- B -- C        a system prompt (A B), pinned, and two conversations behind it:
                 |             prefixes are C, E and, for its pin alone, B
                 +--- D -- E
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError, shown
from octavo.tiers.base import Origin
from octavo.tiers.contents import StoredBlock

_ID_DIGITS = 12
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Prefix:
    """One stored prefix: the blocks from its root, as far back as they are there, to its last one.

    Attributes:
        block_hash: of its last block, which stands for all of it. 32 bytes.
        num_tokens: of its blocks.
        num_blocks: of all layer groups; ``num_bytes``: those of their slots.
        num_shared_bytes: of these, what other prefixes begin with, too.
        used: when its last block was stored or used, in seconds since 1970.
        is_pinned: none of its blocks is evicted or expires.
        is_whole: nothing is missing between its root and its end, so that prompts find it: all layer groups have the
            last block, and one of them has all the others. What a sliding window needs is for an engine to say.
    """

    block_hash: bytes
    origin: Origin
    num_tokens: int
    num_blocks: int
    num_bytes: int
    num_shared_bytes: int
    used: float
    is_pinned: bool
    is_whole: bool

    @property
    def id(self) -> str:
        """What it is called: the first hexadecimal digits of its hash."""
        return self.block_hash.hex()[:_ID_DIGITS]


class StoredPrefixes:
    """The prefixes among ``blocks``: one for each block that none follows, and one for each that is pinned while none
    behind it is, so that every pin is seen. Takes time in proportion to the number of blocks.
    """

    def __init__(self, blocks: Iterable[StoredBlock]) -> None:
        self._nodes = _linked(blocks)
        self._top_down = _top_down(self._nodes.values())
        self._groups: defaultdict[bytes, set[int]] = defaultdict(set)
        for node in self._top_down:
            self._groups[node.origin.model] |= node.groups
        self._ends = [node for node in self._top_down if node.is_end]
        self._sum_up()

    def newest_first(self) -> list[Prefix]:
        """All of them, the one first that was used last."""
        return sorted(map(self._prefix, self._ends), key=lambda prefix: prefix.used, reverse=True)

    def find(self, beginning: str) -> Prefix:
        """The one whose hash, in hexadecimal digits, begins so.

        Raises:
            InvalidRequestError: none does, or several do.
        """
        return self._prefix(self._end(beginning))

    def blocks_of(self, ids: Iterable[str]) -> list[StoredBlock]:
        """All blocks of these prefixes, each once. Raises as :meth:`find`."""
        return _blocks({id(node): node for each in ids for node in self._end(each).path()}.values())

    def blocks_of_none_but(self, ids: Iterable[str]) -> list[StoredBlock]:
        """Blocks that these prefixes have and no other one does. Raises as :meth:`find`."""
        chosen: defaultdict[int, int] = defaultdict(int)
        for end in {id(end): end for end in map(self._end, ids)}.values():
            chosen[id(end)] += 1
        for node in reversed(self._top_down):
            if node.parent is not None:
                chosen[id(node.parent)] += chosen[id(node)]
        return _blocks(node for node in self._top_down if chosen[id(node)] == node.num_ends)

    def blocks_to_unpin(self, ids: Iterable[str]) -> list[StoredBlock]:
        """Pinned blocks of these prefixes, from their ends back to where another pinned one goes on. Raises as
        :meth:`find`.
        """
        unpinned: dict[int, _Node] = {}
        ends = [self._end(each) for each in ids]
        for end in sorted(ends, key=lambda end: end.num_tokens, reverse=True):
            for node in end.path():
                if not node.is_pinned or any(child.is_pinned and id(child) not in unpinned for child in node.children):
                    break
                unpinned[id(node)] = node
        return _blocks(unpinned.values())

    def _end(self, beginning: str) -> _Node:
        digits = beginning.lower()
        found = [end for end in self._ends if digits and end.block_hash.hex().startswith(digits)]
        if not found:
            raise InvalidRequestError(f"no stored prefix has the id {shown(beginning)}", param="ids")
        if len(found) > 1:
            some = ", ".join(end.block_hash.hex()[:_ID_DIGITS] for end in found[:_MOST_NAMED])
            more = ", ..." if len(found) > _MOST_NAMED else ""
            raise InvalidRequestError(
                f"the ids of {len(found):,} stored prefixes begin with {shown(beginning)}: {some}{more}; "
                "give more digits",
                param="ids",
            )
        return found[0]

    def _prefix(self, end: _Node) -> Prefix:
        return Prefix(
            block_hash=end.block_hash,
            origin=end.origin,
            num_tokens=end.num_tokens,
            num_blocks=end.num_blocks,
            num_bytes=end.num_bytes,
            num_shared_bytes=end.num_shared_bytes,
            used=max(block.used for block in end.blocks),
            is_pinned=end.is_pinned_up_to_here,
            is_whole=bool(end.unbroken) and end.groups == self._groups[end.origin.model],
        )

    def _sum_up(self) -> None:
        """What depends on the nodes behind each, then what depends on those before it."""
        for node in reversed(self._top_down):
            node.num_ends += node.is_end
            if node.parent is not None:
                node.parent.num_ends += node.num_ends
        for node in self._top_down:
            node.add_up()


@dataclass(slots=True, eq=False)
class _Node:
    """The blocks of one hash, one for each layer group, and what lies before and behind them.

    Attributes:
        num_ends: prefixes that end here or behind.
        num_tokens, num_blocks, num_bytes, num_shared_bytes: from the root to here.
        unbroken: the layer groups that have all blocks from the root to here.
    """

    block_hash: bytes
    origin: Origin
    blocks: list[StoredBlock] = field(default_factory=list)
    parent: _Node | None = None
    children: list[_Node] = field(default_factory=list)
    num_ends: int = 0
    num_tokens: int = 0
    num_blocks: int = 0
    num_bytes: int = 0
    num_shared_bytes: int = 0
    unbroken: frozenset[int] = frozenset()
    is_pinned_up_to_here: bool = False

    @property
    def groups(self) -> set[int]:
        return {block.key.group for block in self.blocks}

    @property
    def is_pinned(self) -> bool:
        return any(block.pinned for block in self.blocks)

    @property
    def is_end(self) -> bool:
        return not self.children or (self.is_pinned and not any(child.is_pinned for child in self.children))

    def path(self) -> Iterator[_Node]:
        """This one, the one before it, and so on to the first."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def add_up(self) -> None:
        """From what its parent has; from what a root has if it is the first."""
        before, first = self.parent, self.blocks[0]
        own_bytes = sum(block.place.slot_bytes for block in self.blocks)
        shared = own_bytes if self.num_ends > 1 else 0
        pinned = all(block.pinned for block in self.blocks)
        self.num_tokens, self.num_blocks = first.num_tokens, len(self.blocks)
        self.num_bytes, self.num_shared_bytes, self.is_pinned_up_to_here = own_bytes, shared, pinned
        if before is None:
            follows_root = first.parent_hash == self.origin.root
            self.unbroken = frozenset(self.groups) if follows_root else frozenset()
            return
        self.num_tokens += before.num_tokens
        self.num_blocks += before.num_blocks
        self.num_bytes += before.num_bytes
        self.num_shared_bytes += before.num_shared_bytes
        self.is_pinned_up_to_here = pinned and before.is_pinned_up_to_here
        self.unbroken = before.unbroken & self.groups


def _linked(blocks: Iterable[StoredBlock]) -> dict[bytes, _Node]:
    nodes: dict[bytes, _Node] = {}
    for block in blocks:
        block_hash = block.key.block_hash
        if block_hash not in nodes:
            nodes[block_hash] = _Node(block_hash, block.origin)
        nodes[block_hash].blocks.append(block)
    for node in nodes.values():
        node.parent = nodes.get(node.blocks[0].parent_hash)
        if node.parent is not None:
            node.parent.children.append(node)
    return nodes


def _top_down(nodes: Collection[_Node]) -> list[_Node]:
    """Each behind its parent. Where damage has made a ring of them, it is cut somewhere."""
    order: list[_Node] = []
    seen: set[int] = set()
    for top in [*(node for node in nodes if node.parent is None), *nodes]:
        if id(top) in seen:
            continue
        if top.parent is not None:
            top.parent.children.remove(top)
            top.parent = None
        seen.add(id(top))
        waiting = [top]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += node.children
            seen.update(map(id, node.children))
    return order


def _blocks(nodes: Iterable[_Node]) -> list[StoredBlock]:
    return [block for node in nodes for block in node.blocks]
