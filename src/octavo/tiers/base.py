"""Tier: where blocks are kept beside the pool, seen from the engine.

Nothing here waits for a disk. Storing a block is two calls: :meth:`Tier.prepare_store` gives room for its bytes, which
the caller copies from the pool, and :meth:`Tier.complete_store` hands them over. Loading is two calls as well:
:meth:`Tier.prepare_load` has blocks read straight into the pool while others are computed, and
:meth:`Tier.complete_load` says what became of each, ``PENDING`` as long as it is not known.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

HASH_BYTES = 32
NO_TENANT = bytes(HASH_BYTES)
"""Of blocks that were computed under no cache salt."""


def tenant_digest(cache_salt: bytes) -> bytes:
    """What stands for a cache salt where blocks are kept: its SHA-256, or :data:`NO_TENANT` for none."""
    return hashlib.sha256(cache_salt).digest() if cache_salt else NO_TENANT


class Result(enum.Enum):
    """What became of the load of a block."""

    HIT = "hit"
    """Its bytes are where they were to be put, and are proved to be what was stored."""
    MISS = "miss"
    """It is not there, or what was there is damaged and was dropped."""
    PENDING = "pending"
    """It is being read."""
    FAILED = "failed"
    """It could not be read this time; it may be there all the same."""


class BlockKey(NamedTuple):
    """A block by its content: ``block_hash`` (32 bytes) stands for its tokens, all before them, model and salt; see
    :mod:`octavo.kv.hashing`. ``group``: the layer group.
    """

    block_hash: bytes
    group: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose block it is. All of it follows from the namespace; written down so that an administrator can tell.

    Attributes:
        root: parent hash of every first block: model, formats, layout and cache salt. 32 bytes.
        model: the same without the salt: blocks of two models, or formats, are never of one. 32 bytes.
        tenant: digest of the cache salt, or :data:`NO_TENANT`. 32 bytes.
        label: the model and its KV format, for people to read; at most 64 bytes of it are kept.
    """

    root: bytes
    model: bytes
    tenant: bytes
    label: str


@dataclass(frozen=True, slots=True)
class BlockContent:
    """What a block holds, beside its bytes: what it takes to find it again and to tell whether it is the right one.

    Attributes:
        parent_hash: of the block before it, or the root.
        token_ids: its own; the block is full.
    """

    key: BlockKey
    origin: Origin
    parent_hash: bytes
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """A block on its way into a tier; ``memory`` is to be filled with its bytes before it is completed."""

    content: BlockContent
    memory: bytearray


class Load:
    """Blocks on their way out of a tier, each with the memory that it is read to. Nobody may touch that while one is
    ``PENDING``.
    """

    def __init__(self, blocks: Sequence[tuple[BlockContent, memoryview]], done: Callable[[], None]) -> None:
        self.blocks = list(blocks)
        self.done = done
        self.results = [Result.PENDING] * len(self.blocks)
        self.num_begun = 0
        self.num_pending = len(self.blocks)
        self.is_cancelled = False

    def cancel(self) -> None:
        """Nobody needs them any more: what is not begun yet will be ``FAILED``."""
        self.is_cancelled = True


@dataclass(slots=True)
class TierStats:
    """Counters since the start, in blocks. Bytes are those of blocks; seconds are those that threads of the tier spent.

    Attributes:
        num_stored: written, and durable.
        num_dropped: not written, for the queue was full, or all that could have gone for them was pinned.
        num_loaded: read, and proved right.
        num_missed: asked for and not there.
        num_failed: errors of the disk, reading or writing; nothing was deleted for them.
        num_damaged: proved wrong, and gone.
        num_evicted: gone to make room for others.
        num_expired: gone because nobody had used them for long.
    """

    num_stored: int = 0
    num_dropped: int = 0
    num_loaded: int = 0
    num_missed: int = 0
    num_failed: int = 0
    num_damaged: int = 0
    num_evicted: int = 0
    num_expired: int = 0
    bytes_stored: int = 0
    bytes_loaded: int = 0
    seconds_storing: float = 0.0
    seconds_loading: float = 0.0


@dataclass(frozen=True, slots=True)
class TierGauges:
    """What a tier holds now. Bytes are those of files; ``num_own_blocks`` are those that this engine can use."""

    num_blocks: int
    num_own_blocks: int
    num_pinned: int
    num_queued: int
    num_bytes: int
    limit: int


class Tier(Protocol):
    """All methods return at once, but those that say that they wait. Any thread may call them."""

    def __contains__(self, key: BlockKey) -> bool:
        """Whether a load is worth trying."""

    def prepare_store(self, content: BlockContent) -> Store | None:
        """Room for a block's bytes. ``None``: it is there already, or there is no room in the queue: it is dropped."""

    def complete_store(self, store: Store) -> None:
        """The bytes are in the buffer: write them when there is time."""

    def prepare_load(self, blocks: Sequence[tuple[BlockContent, memoryview]], done: Callable[[], None]) -> Load:
        """Begin to read blocks, in this order, each to where it belongs. ``done`` is called once, on any thread, when
        none is pending any more.
        """

    def complete_load(self, load: Load) -> list[Result]:
        """What became of each block so far."""

    def touch(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """These blocks are in use: of all others, the one that was not used for longest goes first. Returns those that
        are not there, and not on their way.
        """

    def foreign(self, tenant: bytes) -> list[tuple[Origin, int]]:
        """Whose blocks of one tenant are there that this engine cannot use, and how many tokens each of them has."""

    def flush(self) -> None:
        """Wait until all that was completed is durable, or has failed."""

    def stats(self) -> TierStats: ...
    def gauges(self) -> TierGauges: ...
    def close(self) -> None:
        """Write what is queued, and end. Waits; twice is harmless."""
