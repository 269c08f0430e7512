"""Slabs: files of slots of one size, read and written at their offsets.

Files are never mapped: reading behind the end of a mapped file that somebody truncated ends the process.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from octavo.tiers.record import ALIGNMENT, MAGIC, RecordError

SLAB_BYTES = 64 * 2**20
"""About the size of one file: so much room is made at once where blocks of another size have to go. It says in which
file a slot is: with another value, what is in a folder is not found.
"""
_MAX_OPEN = 128
"""Files that are kept open. Others are opened for each use: a process may often open a thousand and no more, and a
server needs some for those who ask it.
"""
_NAMES = -1
_NAME = re.compile(r"([1-9][0-9]{3,14})-(0|[1-9][0-9]{0,8})\.slab")


def slot_sizes(folder: Path) -> list[int]:
    """The sizes of slots, in bytes, that there are slabs of in ``folder``."""
    found = {int(name.group(1)) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name))}
    return sorted(size for size in found if size % ALIGNMENT == 0)


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
        # By this, files are those of this very folder, whatever has its name by now.
        self._folder_file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._files: dict[int, int] = {}
        self._opening = threading.Lock()
        self._syncing = threading.Lock()
        self._dirty: set[int] = set()
        """Files with bytes, and ``_NAMES`` for names, that may not be on the disk yet."""
        self._slots: dict[int, int] = {}
        """Whole slots of each file."""
        self._rests: dict[int, int] = {}
        """Bytes of files that are in none of our slots."""
        self._taken: set[int] = set()
        """Numbers whose name something has that is no file, and none of ours."""
        for path in folder.iterdir():
            found = _NAME.fullmatch(path.name)
            if not found or int(found.group(1)) != slot_bytes:
                continue
            if path.is_symlink() or not path.is_file():
                self._taken.add(int(found.group(2)))
                continue
            number, size = int(found.group(2)), path.stat().st_size
            self._slots[number] = min(size // slot_bytes, self._per_slab)
            self._rests[number] = size - self._slots[number] * slot_bytes

    @property
    def num_slots(self) -> int:
        return sum(self._slots.values())

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return self.num_slots * self.slot_bytes + sum(self._rests.values())

    def slots(self) -> list[int]:
        """The numbers of all slots there are."""
        return [
            number * self._per_slab + within for number, count in sorted(self._slots.items()) for within in range(count)
        ]

    def numbers(self) -> list[int]:
        """Of all files."""
        return sorted(self._slots)

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
        with self._opened(number, create=True) as file:
            os.posix_fallocate(file, within * self.slot_bytes, self.slot_bytes)
        self._dirty.add(number)
        self._slots[number] = within + 1
        self._rests[number] = 0
        return number * self._per_slab + within

    def remove_slab(self, number: int) -> None:
        """Delete a file with all slots in it. Raises OSError: it cannot be."""
        with suppress(FileNotFoundError):
            os.unlink(self._name(number), dir_fd=self._folder_file)
        if number in self._files:
            os.close(self._files.pop(number))
        self._dirty.discard(number)
        self._slots.pop(number, None)
        self._rests.pop(number, None)

    def write(self, slot: int, header: bytearray, data: memoryview) -> None:
        """Raises OSError: it could not be written, or not all of it."""
        number, offset = self._place(slot)
        wanted = len(header) + len(data)
        with self._opened(number, create=True) as file:
            written = os.pwritev(file, [header, data], offset)
        self._dirty.add(number)
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
            RecordError: the file ends before it does, or is gone.
        """
        number, offset = self._place(slot)
        wanted = len(header) + len(data)
        try:
            with self._opened(number) as file:
                found = os.preadv(file, [header, data], offset)
        except FileNotFoundError as error:
            raise RecordError("its file is gone") from error
        if found != wanted:
            raise RecordError(f"{found} bytes of {wanted} are there")

    def read_start(self, slot: int, size: int) -> bytes:
        """The first bytes of a slot. Raises OSError as :meth:`read`; there may be fewer."""
        number, offset = self._place(slot)
        try:
            with self._opened(number) as file:
                return os.pread(file, min(size, self.slot_bytes), offset)
        except FileNotFoundError:
            return b""

    def sync(self) -> None:
        """Wait until all that was written is on the disk. Raises OSError: it is not known to be.

        Who waits here while another one does waits for that as well: it may be for the same bytes.
        """
        with self._syncing:
            while self._dirty:
                number = self._dirty.pop()  # before, as what is written from now on may come too late for this
                try:
                    self._sync(number)
                except FileNotFoundError:
                    continue  # what was written is gone with it, and found out when it is read
                except OSError:
                    self._dirty.add(number)
                    raise

    def close(self) -> None:
        for file in (*self._files.values(), self._folder_file):
            os.close(file)
        self._files.clear()
        self._folder_file = -1

    def _sync(self, number: int) -> None:
        if number == _NAMES:
            os.fsync(self._folder_file)
        else:
            with self._opened(number) as file:
                os.fdatasync(file)

    def _name(self, number: int) -> str:
        return f"{self.slot_bytes}-{number}.slab"

    @contextmanager
    def _opened(self, number: int, *, create: bool = False) -> Iterator[int]:
        with self._opening:
            file = self._files.get(number)
            if file is None:
                file = self._open(number, create=create)
                if len(self._files) < _MAX_OPEN:
                    self._files[number] = file
            is_kept = number in self._files
        try:
            yield file
        finally:
            if not is_kept:
                os.close(file)

    def _open(self, number: int, *, create: bool) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self._name(number), flags, dir_fd=self._folder_file)
        except FileNotFoundError:
            if not create:
                raise
        file = os.open(self._name(number), flags | os.O_CREAT, 0o600, dir_fd=self._folder_file)
        self._dirty.add(_NAMES)
        return file

    def _place(self, slot: int) -> tuple[int, int]:
        """The file of a slot, by its number, and where it begins there."""
        number, within = divmod(slot, self._per_slab)
        return number, within * self.slot_bytes
