"""Slabs: files of slots of one size, read and written at their offsets.

Files are never mapped: reading behind the end of a mapped file that somebody truncated ends the process.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from octavo.tiers.record import MAGIC, RecordError

SLAB_BYTES = 64 * 2**20
"""About the size of one file: so much room is made at once where blocks of another size have to go."""
_NAME = re.compile(r"([0-9]{1,15})-([0-9]{1,9})\.slab")


def slot_sizes(folder: Path) -> list[int]:
    """The sizes of slots, in bytes, that there are slabs of in ``folder``."""
    return sorted({int(found.group(1)) for path in folder.iterdir() if (found := _NAME.fullmatch(path.name))})


class Slabs:
    """Numbered slots of ``slot_bytes`` each, one after another in files ``SIZE-NUMBER.slab`` of a folder.

    Any thread may read and write; who reads and writes the same slot at once must look at what he gets. Files are added
    and removed by one thread at a time.

    Args:
        folder: where the files are; it exists.
    """

    def __init__(self, folder: Path, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._folder = folder
        self._per_slab = max(1, SLAB_BYTES // slot_bytes)
        self._files: dict[int, int] = {}
        self._opening = threading.Lock()
        self._dirty: set[int] = set()
        self._slots: dict[int, int] = {}
        """Whole slots of each file."""
        self._taken: set[int] = set()
        """Numbers whose name something has that is no file, and none of ours."""
        for path in folder.iterdir():
            found = _NAME.fullmatch(path.name)
            if not found or int(found.group(1)) != slot_bytes:
                continue
            if path.is_symlink() or not path.is_file():
                self._taken.add(int(found.group(2)))
                continue
            whole = path.stat().st_size // slot_bytes
            self._slots[int(found.group(2))] = min(whole, self._per_slab)

    @property
    def num_slots(self) -> int:
        return sum(self._slots.values())

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return self.num_slots * self.slot_bytes

    def slots(self) -> list[int]:
        """The numbers of all slots there are."""
        return [
            number * self._per_slab + within for number, count in sorted(self._slots.items()) for within in range(count)
        ]

    def __contains__(self, slot: int) -> bool:
        number, within = divmod(slot, self._per_slab)
        return within < self._slots.get(number, 0)

    def slab_of(self, slot: int) -> int:
        """The number of the file that a slot is in."""
        return slot // self._per_slab

    def grow(self) -> int:
        """Add a slot and return its number. Its bytes are the disk's from then on, so that writing it cannot find the
        disk full.

        Raises:
            OSError: there is no room for it, or files cannot be made; nothing was added.
        """
        number = next((n for n, count in self._slots.items() if count < self._per_slab), None)
        if number is None:
            used = self._slots.keys() | self._taken
            number = next(n for n in range(len(used) + 1) if n not in used)
        within = self._slots.get(number, 0)
        file = self._file(number, create=True)
        os.posix_fallocate(file, within * self.slot_bytes, self.slot_bytes)
        self._slots[number] = within + 1
        self._dirty.add(number)
        return number * self._per_slab + within

    def remove_slab(self, number: int) -> None:
        """Delete a file with all slots in it. Raises OSError: it cannot be."""
        file = self._files.pop(number, None)
        if file is not None:
            os.close(file)
        self._dirty.discard(number)
        self._path(number).unlink(missing_ok=True)
        self._slots.pop(number, None)

    def write(self, slot: int, header: bytearray, data: memoryview) -> None:
        """Raises OSError: it could not be written, or not all of it."""
        file, offset = self._place(slot)
        wanted = len(header) + len(data)
        written = os.pwritev(file, [header, data], offset)
        self._dirty.add(slot // self._per_slab)
        if written != wanted:
            raise OSError(f"wrote {written} bytes of {wanted}")

    def erase(self, slot: int) -> None:
        """Nothing of what a slot held is left. Raises as :meth:`write`."""
        self.write(slot, bytearray(), memoryview(bytes(self.slot_bytes)))

    def is_blank(self, slot: int) -> bool:
        """Whether a slot was erased, or never written. Raises as :meth:`read_start`."""
        return not any(self.read_start(slot, len(MAGIC)))

    def read(self, slot: int, header: bytearray, data: memoryview) -> None:
        """Fill both from a slot.

        Raises:
            OSError: it cannot be read now.
            RecordError: the file ends before it does.
        """
        file, offset = self._place(slot)
        wanted = len(header) + len(data)
        found = os.preadv(file, [header, data], offset)
        if found != wanted:
            raise RecordError(f"{found} bytes of {wanted} are there")

    def read_start(self, slot: int, size: int) -> bytes:
        """The first bytes of a slot. Raises OSError as :meth:`read`; there may be fewer."""
        file, offset = self._place(slot)
        return os.pread(file, min(size, self.slot_bytes), offset)

    def sync(self) -> None:
        """Wait until all that was written is on the disk. Raises OSError: it is not known to be."""
        while self._dirty:
            number = next(iter(self._dirty))
            os.fdatasync(self._file(number))
            self._dirty.discard(number)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _path(self, number: int) -> Path:
        return self._folder / f"{self.slot_bytes}-{number}.slab"

    def _file(self, number: int, *, create: bool = False) -> int:
        with self._opening:
            if number not in self._files:
                is_new = create and not self._path(number).exists()
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
                self._files[number] = os.open(self._path(number), flags, 0o600)
                if is_new:
                    sync_folder(self._folder)
            return self._files[number]

    def _place(self, slot: int) -> tuple[int, int]:
        """The file of a slot, and where it begins there."""
        number, within = divmod(slot, self._per_slab)
        return self._file(number), within * self.slot_bytes


def sync_folder(folder: Path) -> None:
    """Wait until the names of new files are on the disk. Raises OSError: they are not known to be."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
