"""Verifying: every stored block is read and proved, and what is proved damaged is dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.tiers.contents import StoredBlock
from octavo.tiers.folder import TierFolder
from octavo.tiers.record import ForeignRecordError, RecordError, check, header_bytes, read_header

Progress = Callable[[int, int], None]
"""Told (bytes read, bytes in all)."""


@dataclass(slots=True)
class Verified:
    """What was found, in blocks.

    Attributes:
        num_ok: proved to be what was stored.
        num_damaged: proved not to be, and gone.
        num_foreign: of another version of Octavo, which can prove them; they stay.
        num_unreadable: the disk would not give them just now; they stay.
        num_bytes: read, of all slots.
    """

    num_ok: int = 0
    num_damaged: int = 0
    num_foreign: int = 0
    num_unreadable: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


def verify(folder: TierFolder, progress: Progress = lambda done, total: None) -> Verified:
    """Read all blocks of ``folder``, in the order of its files. It may be in use: what goes meanwhile is not counted.

    When a block was used last stays as it is. ``progress`` may raise, to end it early.
    """
    began, found = time.perf_counter(), Verified()
    blocks = sorted(folder.blocks(), key=lambda block: block.place)
    total, done = sum(block.place.slot_bytes for block in blocks), 0
    for block in blocks:
        progress(done, total)
        _verify(folder, block, found)
        done += block.place.slot_bytes
    progress(total, total)
    found.seconds = time.perf_counter() - began
    return found


def _verify(folder: TierFolder, block: StoredBlock, found: Verified) -> None:
    if folder.get(block.key) is not block:  # it went, and its slot may be another's
        return
    try:
        slot = folder.read_slot(block)
        found.num_bytes += len(slot)
        _prove(block, slot)
        found.num_ok += 1
    except ForeignRecordError:
        found.num_foreign += 1
    except RecordError as error:
        found.num_damaged += folder.drop_damaged(block, error)
    except OSError:
        found.num_unreadable += 1


def _prove(block: StoredBlock, slot: bytearray) -> None:
    """Raises RecordError: it is not the block, or not whole. ForeignRecordError: it is of another version."""
    content, num_bytes = read_header(slot)
    start = header_bytes(len(content.token_ids))
    if start + num_bytes > len(slot):
        raise RecordError(f"it says that its block has {num_bytes} bytes, for which the slot has no room")
    check(slot[:start], memoryview(slot)[start : start + num_bytes])
    is_block = content.key == block.key and len(content.token_ids) == block.num_tokens
    if not is_block or (content.parent_hash, content.origin.root) != (block.parent_hash, block.origin.root):
        raise RecordError("it is another block than the index says")
