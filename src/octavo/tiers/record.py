"""A block as a file holds it: a header that says what it is, and its bytes as they lie in the pool.

::

    | magic, sizes | root, model, tenant, hash, parent | label | token ids .. | 0 .. | checksum | bytes .. | 0 .. |
    0                                                            header_bytes - 16   header_bytes      slot_bytes

Whatever is read is believed only if all of this is right: the checksum (XXH3-128) is over header and bytes, and the
header names the block that was asked for.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from octavo.tiers.base import HASH_BYTES, BlockContent, BlockKey, Origin

MAGIC = b"OCTAVOKV"
VERSION = 1
"""Of this form. Records of another one are foreign: not damaged, and never read."""
ALIGNMENT = 4096
"""Of slots in a file, in bytes: a page."""
CHECKSUM_BYTES = 16
_LABEL_BYTES = 64
_HEAD = struct.Struct(f"<8sIIIIQ{5 * f'{HASH_BYTES}s'}{_LABEL_BYTES}s")
_MAX_BLOCK_SIZE = 1024


class RecordError(Exception):
    """What was read is not a record, or not a whole one: proof of damage."""


class ForeignRecordError(Exception):
    """A record of another version of this form, which this one cannot read."""


class Header(NamedTuple):
    """``num_bytes``: of the block behind it."""

    content: BlockContent
    num_bytes: int


def header_bytes(block_size: int) -> int:
    """Bytes before the block's own, for blocks of ``block_size`` tokens."""
    return _round_up(_HEAD.size + 4 * block_size + CHECKSUM_BYTES, 64)


def slot_bytes(block_bytes: int, block_size: int) -> int:
    """Bytes of a file that one block takes."""
    return _round_up(header_bytes(block_size) + block_bytes, ALIGNMENT)


def write_header(header: bytearray, content: BlockContent, data: memoryview) -> None:
    """Fill ``header`` (``header_bytes`` long) for a block whose bytes are ``data``.

    Raises:
        ValueError: the header is not as long as its tokens need, or a hash is not 32 bytes long.
    """
    tokens, origin = struct.pack(f"<{len(content.token_ids)}i", *content.token_ids), content.origin
    if len(header) != header_bytes(len(content.token_ids)):
        raise ValueError(f"the header of {len(content.token_ids)} tokens is not {len(header)} bytes long")
    hashes = (origin.root, origin.model, origin.tenant, content.key.block_hash, content.parent_hash)
    if any(len(each) != HASH_BYTES for each in hashes):
        raise ValueError(f"hashes are {HASH_BYTES} bytes long")
    header[:] = bytes(len(header))
    sizes = (len(content.token_ids), 0, len(data))
    _HEAD.pack_into(header, 0, MAGIC, VERSION, content.key.group, *sizes, *hashes, _label_bytes(origin.label))
    header[_HEAD.size : _HEAD.size + len(tokens)] = tokens
    header[-CHECKSUM_BYTES:] = _checksum(header, data)


def read_header(data: bytes | bytearray | memoryview) -> Header:
    """What the header that ``data`` begins with says. Its checksum is not looked at.

    Raises:
        RecordError: there is no header.
        ForeignRecordError: it is one of another version.
    """
    if len(data) < _HEAD.size + CHECKSUM_BYTES:
        raise RecordError(f"a header of {len(data)} bytes is cut off")
    magic, version, group, num_tokens, _, num_bytes, *hashes, label = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise RecordError("it does not begin as a record does")
    if version != VERSION:
        raise ForeignRecordError(f"it is of version {version}; this is {VERSION}")
    if not 0 < num_tokens <= _MAX_BLOCK_SIZE or header_bytes(num_tokens) > len(data):
        raise RecordError(f"it says that it has {num_tokens} tokens, which have no room")
    root, model, tenant, block_hash, parent_hash = hashes
    origin = Origin(root, model, tenant, label.rstrip(b"\0").decode(errors="replace"))
    token_ids = struct.unpack_from(f"<{num_tokens}i", data, _HEAD.size)
    return Header(BlockContent(BlockKey(block_hash, group), origin, parent_hash, token_ids), num_bytes)


def check(header: bytearray, data: memoryview) -> BlockContent:
    """Make sure that a record that was read is whole, and return what it is.

    Raises:
        RecordError: it is not.
        ForeignRecordError: it is one of another version.
    """
    content, num_bytes = read_header(header)
    if num_bytes != len(data):
        raise RecordError(f"it says that its block has {num_bytes} bytes; {len(data)} were expected")
    if bytes(header[-CHECKSUM_BYTES:]) != _checksum(header, data):
        raise RecordError("its checksum is wrong")
    return content


def is_of(found: BlockContent, content: BlockContent) -> bool:
    """Whether a record is that of ``content``; the label is for people alone."""
    return (
        found.key == content.key
        and found.token_ids == content.token_ids
        and found.parent_hash == content.parent_hash
        and found.origin.root == content.origin.root
    )


def _checksum(header: bytearray, data: memoryview) -> bytes:
    digest = xxhash.xxh3_128(memoryview(header)[:-CHECKSUM_BYTES])
    digest.update(data)
    found: bytes = digest.digest()
    return found


def _label_bytes(label: str) -> bytes:
    """Cut where a character ends."""
    return label.encode()[:_LABEL_BYTES].decode(errors="ignore").encode()


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


MAX_HEADER_BYTES = header_bytes(_MAX_BLOCK_SIZE)
