"""DiskTier: blocks in a folder's slots, written behind the engine's back and read ahead of it.

Writing blocks, in this order, by one thread: the rows of their slots are deleted, the slots are written, the bytes are
made durable (fdatasync), the rows are made. So a row is never there without the bytes that it promises; and whatever is
read is checked all the same, by its checksum and against what was asked for. Damage is a miss.

A block that could not be read or written because the disk would not just now is not damaged: nothing is deleted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from octavo.errors import ConfigError
from octavo.tiers.base import BlockContent, BlockKey, Load, Origin, Result, Store, TierGauges, TierStats
from octavo.tiers.contents import Place
from octavo.tiers.folder import TierFolder
from octavo.tiers.index import INDEX_BYTES, ROW_BYTES
from octavo.tiers.record import ForeignRecordError, RecordError, header_bytes, is_of, slot_bytes, write_header

_BATCH = 16
"""Most blocks that become durable together: a disk takes about as long for one."""
_LINGER_SECONDS = 0.5
"""How long a block waits for others that would become durable with it, unless somebody waits for it."""
_NICE = 5
"""Of the thread that writes: processors are the model's first."""
_NUM_READERS = 2
_TIDY_SECONDS = 30.0
_LOG = logging.getLogger("octavo.tiers")


class DiskTier:
    """The tier in ``folder``, for the blocks of one engine: see :class:`octavo.tiers.base.Tier`.

    Args:
        model: as :class:`octavo.tiers.base.Origin` has it; blocks of others are kept, and are none of this engine's.
        block_bytes, block_size: of the pool's blocks.
        queue_bytes: most bytes that wait to be written; at least one block does.

    Raises:
        ConfigError: the limit has no room for one block.
    """

    def __init__(
        self, folder: TierFolder, *, model: bytes, block_bytes: int, block_size: int, queue_bytes: int
    ) -> None:
        self.folder = folder
        self.block_bytes = block_bytes
        self._model = model
        self._header_bytes = header_bytes(block_size)
        self._slot_bytes = slot_bytes(block_bytes, block_size)
        least = INDEX_BYTES + ROW_BYTES + self._slot_bytes
        if folder.limit < least:
            raise ConfigError(f"a disk tier of {folder.limit:,} bytes holds no block; give at least {least:,}")
        self._stats = TierStats()
        self._mutex = threading.Lock()  # of all that follows
        self._wake_writer = threading.Condition(self._mutex)
        self._wake_readers = threading.Condition(self._mutex)
        self._written = threading.Condition(self._mutex)
        self._num_completed = self._num_written = 0
        self._num_awaited = 0  # of those completed: somebody waits until so many are written
        self._buffers_left = max(1, queue_bytes // block_bytes)
        self._buffers: list[bytearray] = []
        self._stores: deque[Store] = deque()
        self._storing: set[BlockKey] = set()  # reserved, queued or being written
        self._loads: deque[Load] = deque()
        self._ending = False
        self._writer = threading.Thread(target=self._write_all, name="octavo-store", daemon=True)
        self._readers = [
            threading.Thread(target=self._read_all, name=f"octavo-load-{index}", daemon=True)
            for index in range(_NUM_READERS)
        ]
        for thread in (self._writer, *self._readers):
            thread.start()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self.folder

    def prepare_store(self, content: BlockContent) -> Store | None:
        key = content.key
        with self._mutex:
            if self._ending or key in self._storing or key in self.folder:
                return None
            if self._buffers:
                memory = self._buffers.pop()
            elif self._buffers_left:
                self._buffers_left -= 1
                memory = bytearray(self.block_bytes)
            else:
                self._stats.num_dropped += 1
                return None
            self._storing.add(key)
        return Store(content, memory)

    def complete_store(self, store: Store) -> None:
        with self._mutex:
            self._stores.append(store)
            self._num_completed += 1
            self._wake_writer.notify()

    def prepare_load(self, blocks: Sequence[tuple[BlockContent, memoryview]], done: Callable[[], None]) -> Load:
        load = Load(blocks, done)
        with self._mutex:
            if self._ending or not load.blocks:
                load.results = [Result.FAILED] * len(load.blocks)
            else:
                self._loads.append(load)
                self._wake_readers.notify_all()
                return load
        done()
        return load

    def complete_load(self, load: Load) -> list[Result]:
        with self._mutex:
            return list(load.results)

    def touch(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        missing = self.folder.touch(keys)
        if missing:
            with self._mutex:
                missing = [key for key in missing if key not in self._storing]
        return missing

    def foreign(self, tenant: bytes) -> list[tuple[Origin, int]]:
        found = {
            block.origin.root: (block.origin, block.num_tokens)
            for block in self.folder.blocks()
            if block.origin.tenant == tenant and block.origin.model != self._model
        }
        return list(found.values())

    def flush(self) -> None:
        with self._mutex:
            wanted = self._num_awaited = self._num_completed
            self._wake_writer.notify()
            self._written.wait_for(lambda: self._num_written >= wanted or not self._writer.is_alive())

    def stats(self) -> TierStats:
        with self._mutex:
            return replace(
                self._stats,
                num_damaged=self.folder.num_damaged,
                num_evicted=self.folder.num_evicted,
                num_expired=self.folder.num_expired,
            )

    def gauges(self) -> TierGauges:
        with self._mutex:
            num_queued = len(self._storing)
        return TierGauges(
            num_blocks=len(self.folder),
            num_own_blocks=self.folder.num_blocks_of(self._model),
            num_pinned=self.folder.num_pinned,
            num_queued=num_queued,
            num_bytes=self.folder.num_bytes,
            limit=self.folder.limit,
        )

    def close(self) -> None:
        with self._mutex:
            if self._ending:
                return
            self._ending = True
            self._wake_writer.notify_all()
            self._wake_readers.notify_all()
        for thread in (self._writer, *self._readers):
            thread.join()
        self.folder.close()

    # Reading -----------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        while True:
            with self._mutex:
                self._wake_readers.wait_for(lambda: self._loads or self._ending)
                if not self._loads:
                    return
                load = self._loads[0]
                index = load.num_begun
                load.num_begun += 1
                if load.num_begun == len(load.blocks):
                    self._loads.popleft()
                cancelled = load.is_cancelled or self._ending
            result = Result.FAILED if cancelled else self._read_or_fail(*load.blocks[index])
            with self._mutex:
                load.results[index] = result
                load.num_pending -= 1
                ended = load.num_pending == 0
            if ended:
                load.done()

    def _read_or_fail(self, content: BlockContent, target: memoryview) -> Result:
        """Whatever went wrong: a request waits for the result."""
        try:
            return self._read(content, target)
        except Exception:
            _LOG.exception("a block could not be read from %s", self.folder.path)
            self._count(num_failed=1)
            return Result.FAILED

    def _read(self, content: BlockContent, target: memoryview) -> Result:
        began = time.perf_counter()
        block = self.folder.get(content.key)
        if block is None:
            self._count(num_missed=1)
            return Result.MISS
        try:
            found = self.folder.read(block, target)
            if not is_of(found, content):
                raise RecordError("it is that of another block")
        except ForeignRecordError:
            self._count(num_missed=1)
            return Result.MISS
        except RecordError as error:
            self.folder.drop_damaged(block, error)
            self._count(num_missed=1)
            return Result.MISS
        except OSError as error:
            _LOG.warning("a block cannot be read from %s: %s", self.folder.path, error.strerror or error)
            self._count(num_failed=1)
            return Result.FAILED
        self.folder.touch([content.key])
        self._count(num_loaded=1, bytes_loaded=len(target), seconds_loading=time.perf_counter() - began)
        return Result.HIT

    # Writing -----------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        with suppress(PermissionError):  # then it takes what it gets
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        tidied = time.monotonic()
        while True:
            with self._mutex:
                self._wake_writer.wait_for(lambda: self._stores or self._ending, _TIDY_SECONDS)
                if self._stores:
                    self._wake_writer.wait_for(self._is_batch_due, _LINGER_SECONDS)
                batch = [self._stores.popleft() for _ in range(min(_BATCH, len(self._stores)))]
                if self._ending and not batch:
                    return
            if time.monotonic() - tidied >= _TIDY_SECONDS:
                self._tidy()
                tidied = time.monotonic()
            if not batch:
                continue
            began = time.perf_counter()
            num_stored = self._write(batch)
            with self._mutex:
                self._storing.difference_update(store.content.key for store in batch)
                self._buffers += [store.memory for store in batch]
                self._stats.num_stored += num_stored
                self._stats.bytes_stored += num_stored * self.block_bytes
                self._stats.seconds_storing += time.perf_counter() - began
                self._num_written += len(batch)
                self._written.notify_all()

    def _is_batch_due(self) -> bool:
        return len(self._stores) >= _BATCH or self._num_awaited > self._num_written or self._ending

    def _write(self, batch: list[Store]) -> int:
        """Returns how many became durable."""
        places: list[Place] = []
        try:
            places = self.folder.take_places(self._slot_bytes, len(batch))
            stored = list(zip(batch, places, strict=False))
            for store, place in stored:
                header = bytearray(self._header_bytes)
                write_header(header, store.content, memoryview(store.memory))
                self.folder.write(place, header, memoryview(store.memory))
            self.folder.commit(self._slot_bytes, [(store.content, place) for store, place in stored])
        except Exception as error:  # whatever it was: the queue goes on
            reason = error.strerror or error if isinstance(error, OSError) else repr(error)
            _LOG.warning("blocks cannot be written to %s: %s", self.folder.path, reason)
            self.folder.give_back(places)
            self._count(num_failed=len(batch))
            return 0
        self._count(num_dropped=len(batch) - len(stored))
        return len(stored)

    def _tidy(self) -> None:
        try:
            self.folder.tidy()
        except OSError as error:
            _LOG.warning("the index in %s cannot be changed: %s", self.folder.path, error.strerror or error)

    def _count(self, **counts: float) -> None:
        with self._mutex:
            for name, count in counts.items():
                setattr(self._stats, name, getattr(self._stats, name) + count)
