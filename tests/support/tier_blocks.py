"""Small blocks for a disk tier, each with bytes of its own, and what one does with them."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Sequence
from pathlib import Path

from octavo.tiers.base import BlockContent, BlockKey, Origin, Result, tenant_digest
from octavo.tiers.disk import DiskTier
from octavo.tiers.folder import TierFolder

BLOCK_BYTES, BLOCK_SIZE = 5_000, 16
ROOMY = 2**30


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def origin(model: str = "model", tenant: bytes = b"") -> Origin:
    return Origin(digest(f"root of {model} {tenant!r}"), digest(model), tenant_digest(tenant), f"{model} bf16")


def block(index: int, chain: str = "a", group: int = 0, of: Origin | None = None) -> BlockContent:
    """The ``index``-th block of a chain."""
    whose = origin() if of is None else of
    parent = digest(f"{whose.root!r} {chain} {index - 1}") if index else whose.root
    tokens = tuple(random.Random(f"{chain} {index}").choices(range(50_000), k=BLOCK_SIZE))
    return BlockContent(BlockKey(digest(f"{whose.root!r} {chain} {index}"), group), whose, parent, tokens)


def data_of(content: BlockContent, size: int = BLOCK_BYTES) -> bytes:
    return random.Random(repr(content.key)).randbytes(size)


def open_tier(folder: Path, *, queue_bytes: int = 2**24, block_bytes: int = BLOCK_BYTES, **options) -> DiskTier:
    opened = TierFolder(folder, **{"limit": ROOMY, **options})
    try:
        return DiskTier(
            opened, model=origin().model, block_bytes=block_bytes, block_size=BLOCK_SIZE, queue_bytes=queue_bytes
        )
    except BaseException:
        opened.close()
        raise


def store(tier: DiskTier, *contents: BlockContent) -> list[BlockContent]:
    """Those that were taken, and are durable now, or failed."""
    taken = []
    for content in contents:
        prepared = tier.prepare_store(content)
        if prepared is not None:
            prepared.memory[:] = data_of(content, tier.block_bytes)
            tier.complete_store(prepared)
            taken.append(content)
    tier.flush()
    return taken


def load(tier: DiskTier, contents: Sequence[BlockContent]) -> list[Result]:
    """What became of each. A hit has the right bytes, or this fails."""
    buffers, done = [bytearray(tier.block_bytes) for _ in contents], threading.Event()
    under_way = tier.prepare_load([(c, memoryview(b)) for c, b in zip(contents, buffers, strict=True)], done.set)
    assert done.wait(30)
    results = tier.complete_load(under_way)
    for content, buffer, result in zip(contents, buffers, results, strict=True):
        assert result is not Result.PENDING
        assert result is not Result.HIT or bytes(buffer) == data_of(content, tier.block_bytes), "wrong bytes"
    return results


def slabs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.slab"))


def check_slots(tier: DiskTier) -> None:
    """Every slot is one block's, or free, or about to be."""
    folder = tier.folder
    folder.tidy()
    taken = [each.place for each in folder.blocks()]
    free = [(size, slot) for size, slots in folder._free.items() for slot in slots]
    assert len(set(taken)) == len(taken) and not set(taken) & set(free) and not folder._gone
    there = [(size, slot) for size, each in folder._slabs.items() for slot in each.slots()]
    assert {*map(tuple, taken), *free} == set(there)
    assert {each.place for each in folder._index.read()} == set(taken)
