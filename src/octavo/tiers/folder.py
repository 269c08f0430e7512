"""TierFolder: the files of a disk tier, which this process has alone: slabs, their index, and what is in which slot."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from octavo.errors import ConfigError
from octavo.tiers.adoption import nothing_collected, open_index
from octavo.tiers.base import BlockContent, BlockKey
from octavo.tiers.contents import Contents, Place, StoredBlock
from octavo.tiers.holding import announce, hold, release
from octavo.tiers.index import INDEX_BYTES, ROW_BYTES
from octavo.tiers.record import check, header_bytes
from octavo.tiers.slab_use import Slab, last_used
from octavo.tiers.slabs import Slabs, slot_sizes

_LOG = logging.getLogger("octavo.tiers")
_INDEX = "index.sqlite"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the disk, for this user, or in this file: what is there goes on being used."""
_RETRY_SECONDS = 60.0
"""After the disk was found full before the limit was reached, until it is tried again."""


class TierFolder:
    """What is in ``folder``, and where there is room. Any thread may use it; one at a time writes blocks.

    ::

        folder/             0700
          lock              whose it is now
          index.sqlite      which block is in which slot
          372736-0.slab     slots of 372,736 bytes each, one after another
          372736-1.slab
          192512-0.slab     those of another model or format

    Args:
        folder: made for its owner alone if it is not there.
        limit: most bytes of all its files.
        ttl: seconds after which what was not used is forgotten; ``None``: never.
        clock: seconds since 1970.

    Raises:
        TierInUseError: another process has it.
        ConfigError: others may read it, it cannot be used, or the limit is too small for anything.
    """

    def __init__(
        self, folder: Path, *, limit: int, ttl: float | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        if limit < INDEX_BYTES:
            raise ConfigError(f"a disk tier needs {INDEX_BYTES:,} bytes for its index alone; the limit is {limit:,}")
        began = time.perf_counter()
        self.path = folder
        self.limit = limit
        self.num_evicted = self.num_expired = self.num_damaged = 0
        self._ttl = ttl
        self._clock = clock
        self._mutex = threading.Lock()  # of what is where; never held while a disk is waited for
        self._contents = Contents()
        self._touched: set[BlockKey] = set()
        self._gone: set[Place] = set()
        """Slots that hold nothing, whose rows are to be deleted still."""
        self._filing = threading.RLock()  # of files, and of slots that are free; taken before the other one
        self._free: dict[int, set[int]] = {}
        """Of each size the slots that hold nothing and have no rows."""
        self._foreign_by_use: dict[int, list[tuple[float, Slab]]] = {}
        self._full_until = 0.0
        self._slabs: dict[int, Slabs] = {}
        self._is_closed = False
        self._lock_file = hold(folder)
        with ExitStack() as held:
            held.callback(release, self._lock_file)
            try:
                for size in slot_sizes(folder):
                    self._slabs[size] = Slabs(folder, size)
                    held.callback(self._slabs[size].close)
                with nothing_collected():
                    self._index, blocks = open_index(folder / _INDEX, self._slabs, clock())
                    held.callback(self._index.close)
                    self._adopt(blocks)
                self._shrink_to_limit()
            except OSError as error:
                raise ConfigError(f"{str(folder)!r} cannot be used as a disk tier: {error}") from error
            self._held = held.pop_all()
        self.seconds_to_adopt = time.perf_counter() - began

    # What is there -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._contents)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._contents

    def get(self, key: BlockKey) -> StoredBlock | None:
        with self._mutex:
            return self._contents.get(key)

    def blocks(self) -> list[StoredBlock]:
        """All of them, as they are now."""
        with self._mutex:
            return list(self._contents)

    @property
    def num_pinned(self) -> int:
        with self._mutex:
            return self._contents.num_pinned

    def num_blocks_of(self, model: bytes) -> int:
        """How many of them are of one model and format; see :class:`octavo.tiers.base.Origin`."""
        with self._mutex:
            return self._contents.num_of(model)

    @property
    def num_bytes(self) -> int:
        """Of all files, the index taken as large as it can get."""
        return INDEX_BYTES + sum(each.num_slots * ROW_BYTES + each.num_bytes for each in list(self._slabs.values()))

    def touch(self, keys: Iterable[BlockKey]) -> list[BlockKey]:
        """These are used now. Returns those that are not there."""
        now, missing = self._clock(), []
        with self._mutex:
            for key in keys:
                if self._contents.touch(key, now) is None:
                    missing.append(key)
                else:
                    self._touched.add(key)
        return missing

    def announce(self, facts: dict[str, str]) -> None:
        """Leave word, for who finds the folder locked, of who has it."""
        announce(self._lock_file, facts)

    # One slot ----------------------------------------------------------------------------------------

    def read(self, block: StoredBlock, data: memoryview) -> BlockContent:
        """Read what is in a block's slot into ``data``, of the block's size, and return what it is.

        Raises:
            RecordError: it is not whole.
            ForeignRecordError: it is of another version.
            OSError: it cannot be read now.
        """
        header = bytearray(header_bytes(block.num_tokens))
        self._slabs[block.place.slot_bytes].read(block.place.slot, header, data)
        return check(header, data)

    def read_slot(self, block: StoredBlock) -> bytearray:
        """All that is in a block's slot. Raises RecordError: there is less. OSError: it cannot be read now."""
        found = bytearray(block.place.slot_bytes)
        self._slabs[block.place.slot_bytes].read(block.place.slot, found, memoryview(bytearray()))
        return found

    def drop_damaged(self, block: StoredBlock, reason: object) -> bool:
        """What was read from ``block``'s slot is wrong. Whether it was damaged: not so if the slot is another block's
        by now, and was read while it became that.
        """
        with self._mutex:
            if self._contents.get(block.key) is not block:
                return False
            self._forget(block)
            self.num_damaged += 1
        _LOG.warning("a block in %s is damaged and was dropped: %s", self.path, reason)
        return True

    # Writing, by one thread --------------------------------------------------------------------------

    def take_places(self, size: int, count: int) -> list[Place]:
        """Slots of ``size`` bytes to write to, fewer than ``count`` where there is no room: free ones, new ones, those
        of blocks that were not used for longest. The index says nothing of them when this returns.

        Raises:
            OSError: no file can be made, or the index cannot be changed. Nothing was taken, and nothing went.
        """
        places: list[Place] = []
        with self._filing:
            try:
                while len(places) < count and (place := self._take_free_place(size)) is not None:
                    places.append(place)
                return places + self._evict(size, count - len(places))
            except BaseException:
                self._free_places(places)
                raise

    def give_back(self, places: Iterable[Place]) -> None:
        """What is in these slots was not committed, or is not known to be: they are free once they have no rows."""
        with self._mutex:
            self._gone.update(places)

    def _free_places(self, places: Iterable[Place]) -> None:
        with self._filing:
            for size, slot in places:
                if slot in self._slabs[size]:
                    self._free[size].add(slot)

    def write(self, place: Place, header: bytearray, data: memoryview) -> None:
        """Raises OSError: it could not be written."""
        self._slabs[place.slot_bytes].write(place.slot, header, data)

    def commit(self, size: int, stored: Sequence[tuple[BlockContent, Place]]) -> None:
        """Make what was written durable, then found.

        Raises:
            OSError: it is not known to be durable; nothing of it is found.
        """
        self._slabs[size].sync()
        now = self._clock()
        blocks = [
            StoredBlock(content.key, place, content.origin, content.parent_hash, len(content.token_ids), now)
            for content, place in stored
        ]
        self._index.add(blocks)
        with self._mutex:
            for block in blocks:
                replaced = self._contents.remove(block.key)
                self._contents.add(block)
                if replaced is not None:
                    self._gone.add(replaced.place)

    def tidy(self) -> None:
        """Forget what nobody used for long, and write down what became of blocks since the last time.

        Raises:
            OSError: the index cannot be changed; it is tried again the next time.
        """
        with self._filing:  # to the end: what a pin writes meanwhile would be undone
            with self._mutex:
                if self._ttl is not None:
                    unused = self._contents.unused_since(self._clock() - self._ttl)
                    for stale in unused:
                        self._forget(stale)
                    self.num_expired += len(unused)
                touched = [block for key in self._touched if (block := self._contents.get(key)) is not None]
                self._touched.clear()
            try:
                self._free_gone()
                self._index.update(touched)
            except OSError:
                with self._mutex:
                    self._touched.update(block.key for block in touched)
                raise

    # Management --------------------------------------------------------------------------------------

    def set_pinned(self, keys: Iterable[BlockKey], pinned: bool) -> int:
        """Blocks that are pinned are never evicted and never expire. Returns how many of these there are.

        Raises:
            OSError: the index cannot be changed.
        """
        with self._filing:  # as nothing goes meanwhile
            with self._mutex:
                found = [block for key in keys if (block := self._contents.get(key)) is not None]
                for block in found:
                    self._contents.set_pinned(block.key, pinned)
            self._foreign_by_use.clear()
            self._index.update(found)
        return len(found)

    def clear(self, chosen: Callable[[StoredBlock], bool] = lambda _: True) -> int:
        """Forget blocks, and overwrite what they and all that went before them held. Returns how many there were.

        Raises:
            OSError: not all could be; what is left of them is not found any more, but may be in the files.
        """
        meant = [block for block in self.blocks() if chosen(block)]
        with self._mutex:
            blocks = [block for block in meant if self._contents.get(block.key) is block]
            for block in blocks:
                self._forget(block)
        with self._filing:
            self._foreign_by_use.clear()
            self._free_gone()
            for size, slots in self._free.items():
                for slot in slots:
                    if not self._slabs[size].is_blank(slot):
                        self._slabs[size].erase(slot)
                self._slabs[size].sync()
        return len(blocks)

    def close(self) -> None:
        """Write down what there is to write down, and let others have the folder. Twice is harmless."""
        with self._filing:
            if self._is_closed:
                return
            self._is_closed = True
            with self._held:
                try:
                    self.tidy()
                except OSError as error:
                    _LOG.warning("the index in %s cannot be changed: %s", self.path, error)

    # Private verbs -----------------------------------------------------------------------------------

    def _forget(self, block: StoredBlock) -> None:
        """Its row is still there: its slot is free once that is gone."""
        self._contents.remove(block.key)
        self._gone.add(block.place)

    def _free_gone(self) -> None:
        """Raises OSError: the index cannot be changed; they are gone still."""
        with self._mutex:
            gone = list(self._gone)
        self._index.remove(gone)
        with self._mutex:
            self._gone.difference_update(gone)
        self._free_places(gone)

    def _take_free_place(self, size: int) -> Place | None:
        """A slot that holds nothing: one that was given back, or a new one, for which foreign slabs may have to go."""
        if size not in self._slabs:
            self._slabs[size] = Slabs(self.path, size)
            self._held.callback(self._slabs[size].close)
            self._free[size] = set(self._slabs[size].slots())
        if self._free[size]:
            return Place(size, self._free[size].pop())
        while self.num_bytes + size + ROW_BYTES > self.limit:
            with self._mutex:
                own = self._contents.least_recent(size, 1)
            if not self._remove_foreign_slab(size, used_before=own[0].used if own else None):
                return None
        if self._clock() < self._full_until:
            return None
        try:
            if shutil.disk_usage(self.path).free > size + INDEX_BYTES:  # else the index could not be changed any more
                return Place(size, self._slabs[size].grow())
        except OSError as error:
            if error.errno not in _FULL:
                raise
        _LOG.warning("the disk of %s is full before its limit of %s bytes is reached", self.path, f"{self.limit:,}")
        self._full_until = self._clock() + _RETRY_SECONDS
        return None

    def _evict(self, size: int, count: int) -> list[Place]:
        """The slots of the blocks of this size that were not used for longest; the blocks are gone, and their rows.

        The rows go first: where the index cannot be changed, no block goes. Raises OSError: it cannot.
        """
        with self._mutex:
            chosen = self._contents.least_recent(size, count)
        self._index.remove([block.place for block in chosen])
        with self._mutex:  # what another thread dropped meanwhile is in ``_gone``, or erased
            evicted = [block for block in chosen if self._contents.get(block.key) is block]
            for block in evicted:
                self._contents.remove(block.key)
            self.num_evicted += len(evicted)
        return [block.place for block in evicted]

    def _remove_foreign_slab(self, size: int, used_before: float | None) -> bool:
        """Delete the slab of another size that was not used for longest, if that is longer ago than ``used_before``."""
        if size not in self._foreign_by_use:
            found = last_used(self._slabs, self.blocks())
            by_use = [(used, slab) for slab, used in found.items() if slab.slot_bytes != size]
            self._foreign_by_use[size] = sorted(by_use, reverse=True)
        by_use = self._foreign_by_use[size]
        if not by_use or (used_before is not None and by_use[-1][0] >= used_before):
            return False
        self._remove_slab(by_use.pop()[1])
        return True

    def _remove_slab(self, slab: Slab) -> None:
        """Raises OSError: the index cannot be changed, and all is as it was; or the file cannot be deleted: it holds
        nothing then.
        """
        size, number = slab
        slabs = self._slabs[size]
        places = {Place(size, slot) for slot in slabs.slots() if slabs.slab_of(slot) == number}
        self._index.remove(places)
        lost = [block for block in self.blocks() if block.place in places]
        with self._mutex:
            lost = [block for block in lost if self._contents.get(block.key) is block]
            for block in lost:
                self._contents.remove(block.key)
            self._gone -= places
            self.num_evicted += len(lost)
        slots = {slot for _, slot in places}
        self._free[size] |= slots
        slabs.remove_slab(number)
        self._free[size] -= slots

    # Beginning ---------------------------------------------------------------------------------------

    def _adopt(self, blocks: Sequence[StoredBlock]) -> None:
        """Find what the index says there is, where its slot is there and no other block's."""
        now, useless = self._clock(), []
        self._free = {size: set(slabs.slots()) for size, slabs in self._slabs.items()}
        none: set[int] = set()
        for block in blocks:
            free, slot = self._free.get(block.place.slot_bytes, none), block.place.slot
            if slot not in free:
                self.num_damaged += 1
                useless.append(block.place)
            elif block.key in self._contents:
                useless.append(block.place)
            else:
                block.used = min(block.used, now)  # by a clock that was wrong it would never expire
                self._contents.add(block)
                free.remove(slot)
        self._index.trust(self.blocks)
        if self.num_damaged:
            _LOG.warning("%s has lost files, or ends of them, with %d blocks", self.path, self.num_damaged)
        self._index.remove(useless)

    def _shrink_to_limit(self) -> None:
        """Delete slabs until the limit is kept, that first which was not used for longest; pinned ones last."""
        while self.num_bytes > self.limit:
            found = last_used(self._slabs, self.blocks())
            found = found or last_used(self._slabs, self.blocks(), with_pinned=True)
            self._remove_slab(min(found, key=found.__getitem__))
