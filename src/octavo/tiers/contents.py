"""Contents: which block is in which slot, as the process knows it, and which of them goes first."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from octavo.tiers.base import BlockKey, Origin


class Place(NamedTuple):
    """A slot, by its number among those of its size."""

    slot_bytes: int
    slot: int


@dataclass(slots=True)
class StoredBlock:
    """A block that is in a slot.

    Attributes:
        parent_hash: of the block before it, or its origin's root.
        num_tokens: of the block.
        used: when it was stored or last used, in seconds since 1970.
        pinned: it is never evicted, and never expires.
    """

    key: BlockKey
    place: Place
    origin: Origin
    parent_hash: bytes
    num_tokens: int
    used: float
    pinned: bool = False


class Contents:
    """Blocks by their key. Of each size of slots, those that are not pinned are kept in the order of their last use."""

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, StoredBlock] = {}
        self._by_use: defaultdict[int, OrderedDict[BlockKey, StoredBlock]] = defaultdict(OrderedDict)
        self._of_model: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[StoredBlock]:
        return iter(self._blocks.values())

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    def get(self, key: BlockKey) -> StoredBlock | None:
        return self._blocks.get(key)

    def add(self, block: StoredBlock) -> None:
        """Mutates: ``block`` is the one that is found, and used last."""
        if block.key in self._blocks:
            self.remove(block.key)
        self._blocks[block.key] = block
        self._of_model[block.origin.model] += 1
        if not block.pinned:
            self._by_use[block.place.slot_bytes][block.key] = block

    def remove(self, key: BlockKey) -> StoredBlock | None:
        """Mutates: the block is not found any more. Returns it, if there was one."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._by_use[block.place.slot_bytes].pop(key, None)
            self._of_model[block.origin.model] -= 1
        return block

    def touch(self, key: BlockKey, now: float) -> StoredBlock | None:
        """Mutates: the block is used now. Returns it, if there is one."""
        block = self._blocks.get(key)
        if block is not None:
            block.used = now
            if not block.pinned:
                self._by_use[block.place.slot_bytes].move_to_end(key)
        return block

    def set_pinned(self, key: BlockKey, pinned: bool) -> None:
        """Mutates: the block, if there is one, is kept whatever comes, or no longer; then it counts as used last."""
        block = self._blocks.get(key)
        if block is not None:
            block.pinned = pinned
            self.add(block)

    def least_recent(self, slot_bytes: int, count: int) -> list[StoredBlock]:
        """Of one size, what was not used for longest and is not pinned: so many, or all there are."""
        return list(islice(self._by_use[slot_bytes].values(), count))

    def unused_since(self, when: float) -> list[StoredBlock]:
        """What is not pinned and was not used since then."""
        found = []
        for blocks in self._by_use.values():
            for block in blocks.values():
                if block.used >= when:
                    break
                found.append(block)
        return found

    def num_of(self, model: bytes) -> int:
        """How many are of one model and format."""
        return self._of_model[model]

    @property
    def num_pinned(self) -> int:
        return len(self._blocks) - sum(map(len, self._by_use.values()))
