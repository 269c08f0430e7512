"""When slabs were used last: that decides which of them goes where room is needed for blocks of another size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.tiers.contents import StoredBlock
from octavo.tiers.slabs import Slabs


class Slab(NamedTuple):
    """A file of slots, by its number among those of its size."""

    slot_bytes: int
    number: int


def last_used(
    slabs: Mapping[int, Slabs], blocks: Iterable[StoredBlock], *, with_pinned: bool = False
) -> dict[Slab, float]:
    """When something in each slab was used last; 0: there is nothing in it.

    Args:
        slabs: by the size of their slots.
        blocks: all that is in them.
        with_pinned: those that have what is pinned are left out otherwise.
    """
    pinned: set[Slab] = set()
    found = {Slab(size, number): 0.0 for size, own in slabs.items() for number in own.numbers()}
    for block in blocks:
        size, slot = block.place
        slab = Slab(size, slabs[size].slab_of(slot))
        found[slab] = max(found.get(slab, 0.0), block.used)
        if block.pinned:
            pinned.add(slab)
    return {slab: used for slab, used in found.items() if with_pinned or slab not in pinned}
