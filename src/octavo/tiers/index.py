"""SlotIndex: which block is in which slot, in a SQLite file.

A row is there only while its slot holds what the row says: it is deleted before the slot is written, and made when the
bytes are on the disk. Whatever is lost of the index is a miss. Damage that shows only when a row is changed costs
nothing: the process knows what the rows are to say.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from octavo.tiers.base import BlockKey, Origin
from octavo.tiers.contents import Place, StoredBlock

INDEX_BYTES = 2 * 2**20
ROW_BYTES = 512
"""What the index takes of the disk at most: at least this, and so much for each slot."""
_VERSION = 2
_SCHEMA = """
CREATE TABLE origins (
    id INTEGER PRIMARY KEY,
    root BLOB NOT NULL,
    model BLOB NOT NULL,
    tenant BLOB NOT NULL,
    label TEXT NOT NULL,
    UNIQUE (root, model, tenant, label)
);
CREATE TABLE slots (
    slot_bytes INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    block_hash BLOB NOT NULL,
    layer_group INTEGER NOT NULL,
    origin INTEGER NOT NULL REFERENCES origins (id),
    parent_hash BLOB NOT NULL,
    num_tokens INTEGER NOT NULL,
    used REAL NOT NULL,
    pinned INTEGER NOT NULL,
    PRIMARY KEY (slot_bytes, slot)
) WITHOUT ROWID;
"""
_INSERT = "INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_WRONG_ROW = """
SELECT 1 FROM slots WHERE
    typeof(slot_bytes) != 'integer' OR typeof(slot) != 'integer' OR slot < 0
    OR typeof(block_hash) != 'blob' OR length(block_hash) != 32
    OR typeof(parent_hash) != 'blob' OR length(parent_hash) != 32
    OR typeof(layer_group) != 'integer' OR typeof(origin) != 'integer'
    OR typeof(num_tokens) != 'integer' OR num_tokens NOT BETWEEN 1 AND 1024
    OR typeof(used) != 'real' OR typeof(pinned) != 'integer'
UNION SELECT 1 FROM origins WHERE
    typeof(root) != 'blob' OR length(root) != 32 OR typeof(model) != 'blob' OR length(model) != 32
    OR typeof(tenant) != 'blob' OR length(tenant) != 32 OR typeof(label) != 'text'
"""
_DAMAGE = (sqlite3.DatabaseError, ValueError, OverflowError)
"""What sqlite3 raises for a damaged file; text in it that is no UTF-8 is a ValueError."""
_TRANSIENT = (
    *("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY"),
    *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_NOMEM", "SQLITE_PERM"),
)
_PROOF = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT_UNIQUE")
"""What only a damaged index answers to a change."""
_FILES = ("", "-wal", "-shm", "-journal")
_LOG = logging.getLogger("octavo.tiers")


class IndexDamagedError(Exception):
    """The file is no index, or not one of this version."""


def remove_index(path: Path) -> None:
    """Delete an index that cannot be read. Raises OSError: it cannot be deleted either."""
    for end in _FILES:
        path.with_name(path.name + end).unlink(missing_ok=True)


class SlotIndex:
    """The index in ``path``, made if it is not there. This process has it alone. Any thread may use it.

    Args:
        known: what there is in slots, as far as it is known: what an index says that is new, or is made anew because a
            change finds it damaged.

    Raises:
        IndexDamagedError: it cannot be read as one.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, known: Callable[[], Iterable[StoredBlock]] = tuple) -> None:
        self._path = path
        self._known = known
        self._lock = threading.RLock()
        self._is_closed = False
        self._open()

    def trust(self, known: Callable[[], Iterable[StoredBlock]]) -> None:
        """From now on, ``known`` is what it is to say."""
        with self._lock:
            self._known = known

    def _open(self) -> None:
        if not self._path.exists():
            self._path.touch(0o600)
        with self._path.open("r+b"):
            pass  # sqlite3 would not say why not
        self._db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        try:
            self._prepare()
            self._db.execute("DELETE FROM origins WHERE id NOT IN (SELECT origin FROM slots)")
            self._origins = self._read_origins()
            if self._version() == 0:
                self._fill()
        except (*_DAMAGE, IndexDamagedError) as error:
            self._db.close()
            raise _as_what_it_is(error) from error
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        # Exclusive, the shared memory of the write-ahead log is this process's own: no mapped file.
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = FULL",
            "wal_autocheckpoint = 64",
            "journal_size_limit = 524288",
        ):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        version = self._version()
        if version == 0 and not self._db.execute("SELECT name FROM sqlite_schema").fetchall():
            self._db.executescript(_SCHEMA)
        elif version != _VERSION:
            raise IndexDamagedError(f"it is of version {version}, or was never filled; this is {_VERSION}")

    def _fill(self) -> None:
        """It has its version last: one that a process died over is made anew."""
        self._execute(_INSERT, self._rows_of(list(self._known())))
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _version(self) -> int:
        [(version,)] = self._db.execute("PRAGMA user_version")
        return int(version)

    def _read_origins(self) -> dict[Origin, int]:
        found = self._db.execute("SELECT root, model, tenant, label, id FROM origins")
        return {Origin(*of): number for *of, number in found}

    def read(self) -> list[StoredBlock]:
        """What it says is there, that first which was not used for longest.

        Raises:
            IndexDamagedError: it cannot be read to its end.
            OSError: it cannot be just now.
        """
        query = (
            "SELECT slot_bytes, slot, block_hash, layer_group, origin, parent_hash, num_tokens, used, pinned "
            "FROM slots ORDER BY used, slot_bytes, slot"
        )
        try:
            with self._lock:
                if self._db.execute(_WRONG_ROW).fetchone():
                    raise IndexDamagedError("some of its rows are no rows of ours")
                origins = {number: origin for origin, number in self._read_origins().items()}
                return [
                    StoredBlock(
                        BlockKey(block_hash, group),
                        Place(slot_bytes, slot),
                        origins[origin],
                        parent_hash,
                        num_tokens,
                        used,
                        bool(pinned),
                    )
                    for (
                        slot_bytes,
                        slot,
                        block_hash,
                        group,
                        origin,
                        parent_hash,
                        num_tokens,
                        used,
                        pinned,
                    ) in self._db.execute(query)
                ]
        except (*_DAMAGE, KeyError) as error:
            raise _as_what_it_is(error) from error

    def remove(self, places: Iterable[Place]) -> None:
        """Forget what is in slots. Durable when it returns. Raises OSError: it is not known to be."""
        self._change("DELETE FROM slots WHERE slot_bytes = ? AND slot = ?", lambda: sorted(places))

    def add(self, blocks: Iterable[StoredBlock]) -> None:
        """``blocks`` are on the disk. Raises as :meth:`remove`."""
        stored = list(blocks)
        self._change(_INSERT, lambda: self._rows_of(stored))

    def update(self, blocks: Iterable[StoredBlock]) -> None:
        """Write down when blocks were used last, and whether they are pinned. Raises as :meth:`remove`."""
        in_order = sorted(blocks, key=lambda block: block.place)  # so that each of its pages is written once
        rows = [(block.used, block.pinned, *block.place, block.key.block_hash) for block in in_order]
        self._change(
            "UPDATE slots SET used = ?, pinned = ? WHERE slot_bytes = ? AND slot = ? AND block_hash = ?", lambda: rows
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._db.close()

    def _rows_of(self, blocks: list[StoredBlock]) -> list[Any]:
        origins = self._ids_of({block.origin for block in blocks})
        return [
            (
                *block.place,
                *block.key,
                origins[block.origin],
                block.parent_hash,
                block.num_tokens,
                block.used,
                block.pinned,
            )
            for block in blocks
        ]

    def _ids_of(self, origins: Iterable[Origin]) -> dict[Origin, int]:
        new = [each for each in origins if each not in self._origins]
        if new:
            self._execute(
                "INSERT INTO origins (root, model, tenant, label) VALUES (?, ?, ?, ?)",
                [(each.root, each.model, each.tenant, each.label) for each in new],
            )
            self._origins = self._read_origins()
        return self._origins

    def _change(self, statement: str, rows: Callable[[], list[Any]]) -> None:
        """Make one change. An index that is found damaged by it is made anew, once, of what is known to be there."""
        with self._lock:
            try:
                try:
                    self._execute(statement, rows())
                except (sqlite3.DatabaseError, KeyError) as error:
                    if self._is_closed or not _shows_damage(error):
                        raise
                    _LOG.warning("the index in %s is damaged and is made anew: %s", self._path.parent, error)
                    self._make_anew()
                    self._execute(statement, rows())
            except (*_DAMAGE, KeyError, IndexDamagedError) as error:
                raise OSError(f"the index cannot be changed: {error}") from error

    def _make_anew(self) -> None:
        self._db.close()
        remove_index(self._path)
        self._open()

    def _execute(self, statement: str, rows: list[Any]) -> None:
        """In one transaction."""
        if not rows:
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(statement, rows)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _shows_damage(error: Exception) -> bool:
    """A row that is not there though it was made, and a connection that an earlier attempt closed, among them."""
    name = getattr(error, "sqlite_errorname", "")
    return isinstance(error, KeyError | sqlite3.ProgrammingError) or name.startswith(_PROOF)


def _as_what_it_is(error: Exception) -> Exception:
    """Damage, or what the disk would not do just now."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(_TRANSIENT) and name != "SQLITE_IOERR_SHORT_READ":
        return OSError(f"the index cannot be opened: {error}")
    return IndexDamagedError(str(error))
