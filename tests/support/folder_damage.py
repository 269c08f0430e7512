"""What can become of the files of a disk tier while nobody looks, or while somebody does."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], None]


def slabs(folder: Path) -> list[Path]:
    """Those that are files, the same order each time."""
    return sorted(path for path in folder.glob("*.slab") if path.is_file())


def slot_bytes(slab: Path) -> int:
    return int(slab.name.partition("-")[0])


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, bit: int = 0) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ (1 << bit)]))


def flip_bits(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder):
        for _ in range(rng.randint(1, 20) if slab.stat().st_size else 0):
            flip(slab, rng.randrange(slab.stat().st_size), rng.randrange(8))


def cut(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder):
        os.truncate(slab, rng.randrange(slab.stat().st_size + 1))


def swap(folder: Path, rng: random.Random) -> None:
    """Two records change places."""
    for slab in slabs(folder):
        size = slot_bytes(slab)
        count = slab.stat().st_size // size
        if count:
            data = slab.read_bytes()
            one, other = rng.choices(range(count), k=2)
            overwrite(slab, one * size, data[other * size : (other + 1) * size])
            overwrite(slab, other * size, data[one * size : (one + 1) * size])


def exchange_slabs(folder: Path, rng: random.Random) -> None:
    """Each has the bytes of another one: of another model or format, where there are several."""
    files = slabs(folder)
    contents = [path.read_bytes() for path in files]
    by = rng.randrange(len(files)) if files else 0
    for path, data in zip(files, contents[by:] + contents[:by], strict=True):
        path.write_bytes(data)


def delete(folder: Path, rng: random.Random) -> None:
    """Any file, the lock of a process that is gone among them."""
    rng.choice(sorted(path for path in folder.iterdir() if path.is_file())).unlink()


def delete_slabs(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder):
        if rng.random() < 0.7:
            slab.unlink()


def put_a_directory(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder)[-1:]:
        slab.unlink()
        slab.mkdir()


def put_a_pipe(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder)[-1:]:
        slab.unlink()
        os.mkfifo(slab)


def put_a_dangling_link(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder)[-1:]:
        slab.unlink()
        slab.symlink_to(folder / "nowhere" / "at all")


def put_an_endless_device(folder: Path, rng: random.Random) -> None:
    for slab in slabs(folder)[-1:]:
        slab.unlink()
        slab.symlink_to("/dev/zero")


def garble_index(folder: Path, rng: random.Random) -> None:
    path = folder / "index.sqlite"
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 200)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def cut_index(folder: Path, rng: random.Random) -> None:
    path = folder / "index.sqlite"
    os.truncate(path, rng.randrange(path.stat().st_size))


def replace_index(folder: Path, rng: random.Random) -> None:
    (folder / "index.sqlite").write_bytes(rng.randbytes(rng.choice([0, 1, 100, 5000])))


def delete_index(folder: Path, rng: random.Random) -> None:
    for path in folder.glob("index.sqlite*"):
        path.unlink()


def old_index(folder: Path, rng: random.Random) -> None:
    """One of an earlier time: it says of slots what they held then."""
    kept = folder.parent / "an old index"
    path = folder / "index.sqlite"
    if kept.exists():
        path.write_bytes(kept.read_bytes())
    else:
        kept.write_bytes(path.read_bytes())


TO_SLABS: list[Damage] = [flip_bits, cut, swap, exchange_slabs, delete_slabs]
TO_INDEX: list[Damage] = [garble_index, cut_index, replace_index, delete_index]
IN_PLACE_OF_SLABS: list[Damage] = [put_a_directory, put_a_pipe, put_a_dangling_link, put_an_endless_device]
EXISTING: list[Damage] = [*TO_SLABS, *TO_INDEX, delete, old_index]
