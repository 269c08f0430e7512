"""What makes two caches comparable, and the SHA-256 chain that names a block by everything before it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""32 bytes that stand for a block's tokens, every token before them, and the namespace they live in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Whatever changes a cached value or the meaning of its bytes. Different namespaces never meet.

    Attributes:
        weights_digest: digest of the weights as loaded.
        spec_digest: ``ModelSpec.digest()``, resolved rotary factors included.
        kv_formats: the KV format of each layer, first layer first.
        block_size: tokens per block.
        layout_version: version of the byte layout within a block.
        numerics_id: instruction set and hash of the native sources: what decides the last bit.
        cache_salt: separates tenants; empty where there is one.
    """

    weights_digest: bytes
    spec_digest: bytes
    kv_formats: tuple[str, ...]
    block_size: int
    layout_version: int
    numerics_id: str
    cache_salt: bytes = b""

    def root(self) -> BlockHash:
        """The parent hash of every first block: SHA-256 over the fields, each tagged and length-prefixed.

        Without tags and lengths ``("ab", "c")`` and ``("a", "bc")`` would be one namespace.
        """
        digest = hashlib.sha256()
        for field in fields(self):
            digest.update(_prefixed(field.name.encode()) + _prefixed(_encode(getattr(self, field.name))))
        return BlockHash(digest.digest())


def hash_block(parent_hash: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """SHA-256 over ``parent_hash`` and the block's tokens as little-endian int32. The same in every process.

    Raises:
        struct.error: a token id does not fit an int32.
    """
    tokens = struct.pack(f"<{len(token_ids)}i", *token_ids)
    return BlockHash(hashlib.sha256(parent_hash + tokens).digest())


def _encode(value: bytes | str | int | tuple[str, ...]) -> bytes:
    # A field has one type, so its tag already says which of these encodings was used.
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return b"".join(_prefixed(item.encode()) for item in value)
    return str(value).encode()


def _prefixed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
