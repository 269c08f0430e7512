"""The index of a folder that is opened: as it was left, or made anew from the headers of the slots."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from octavo.tiers.contents import Place, StoredBlock
from octavo.tiers.index import IndexDamagedError, SlotIndex, remove_index
from octavo.tiers.record import MAX_HEADER_BYTES, ForeignRecordError, RecordError, read_header, slot_bytes
from octavo.tiers.slabs import Slabs

_LOG = logging.getLogger("octavo.tiers")


def open_index(path: Path, slabs: Mapping[int, Slabs], now: float) -> tuple[SlotIndex, list[StoredBlock]]:
    """The index in ``path``, and what it says there is, the block first that was not used for longest.

    One that cannot be read, or is not there, is made anew; nobody knows then when blocks were used, or which were
    pinned.

    Args:
        slabs: those of the folder, by the size of their slots.
        now: in seconds since 1970.

    Raises:
        OSError: it can be neither read nor made.
    """

    def known() -> Iterator[StoredBlock]:
        return _blocks_by_header(slabs, now)

    try:
        return _read(path, known)
    except IndexDamagedError as error:
        _LOG.warning("the index in %s cannot be read and is made anew: %s", path.parent, error)
        remove_index(path)
    try:
        return _read(path, known)
    except IndexDamagedError as error:
        raise OSError(f"its index was made anew and cannot be read: {error}") from error


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Where many objects are made that stay: to look for garbage among them, again and again, takes as long as that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(path: Path, known: Callable[[], Iterable[StoredBlock]]) -> tuple[SlotIndex, list[StoredBlock]]:
    index = SlotIndex(path, known)
    try:
        return index, index.read()
    except BaseException:
        index.close()
        raise


def _blocks_by_header(slabs: Mapping[int, Slabs], now: float) -> Iterator[StoredBlock]:
    """What the slots' own headers say. A wrong one is found out when its block is read."""
    for size, own in slabs.items():
        for slot in own.slots():
            try:
                content, num_bytes = read_header(own.read_start(slot, MAX_HEADER_BYTES))
            except (RecordError, ForeignRecordError):
                continue
            num_tokens = len(content.token_ids)
            if slot_bytes(num_bytes, num_tokens) == size:
                yield StoredBlock(content.key, Place(size, slot), content.origin, content.parent_hash, num_tokens, now)
