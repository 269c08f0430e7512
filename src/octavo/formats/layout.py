"""A whole block of the KV pool, written and read without the native core.

::

    layer 0 of the block's group, layer 1, ...
      KV head 0, 1, ...
        codes   of the keys: block_size / 16 key tiles; of the values: as many value tiles
        scales  of the keys: block_size / 16 scale tiles; of the values: as many

The pool rounds this up to its alignment with zeros. A token that nobody has written is zero in every format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from octavo.formats import tiles
from octavo.formats.codec import Codec, Codes, Encoded, Floats, Scales
from octavo.formats.kv_format import CODECS, KVFormat


class Plane(NamedTuple):
    """The keys, or the values, of one layer and one KV head in a block."""

    layer: int
    head: int
    is_key: bool
    codec: Codec


def planes(formats: Sequence[KVFormat], num_kv_heads: int) -> Iterator[tuple[Plane, Plane]]:
    """The keys and the values of every layer and head of a block, in their order; ``formats`` are the layers'."""
    for layer, kv_format in enumerate(formats):
        for head in range(num_kv_heads):
            keys, values = CODECS[kv_format.key], CODECS[kv_format.value]
            yield Plane(layer, head, True, keys), Plane(layer, head, False, values)


def write_block(formats: Sequence[KVFormat], keys: Floats, values: Floats) -> tiles.Bytes:
    """The bytes of a block from ``keys`` and ``values [layers, KV heads, block_size, head_dim]``.

    ``formats`` are those of the layers, block_size a multiple of 16 and head_dim of every codec's step.
    """
    parts: list[tiles.Bytes] = []
    for of_keys, of_values in planes(formats, keys.shape[1]):
        key_codes, key_scales = _write(of_keys, of_keys.codec.encode_key(keys[of_keys.layer, of_keys.head]))
        value_codes, value_scales = _write(of_values, of_values.codec.encode_value(values[of_keys.layer, of_keys.head]))
        parts += key_codes + value_codes + key_scales + value_scales
    return np.concatenate(parts)


def read_block(
    block: tiles.Bytes, formats: Sequence[KVFormat], num_kv_heads: int, head_dim: int, block_size: int
) -> Iterator[tuple[Plane, Encoded]]:
    """Every plane of a block's bytes with its ``codes [block_size, head_dim]`` and ``scales [block_size, S]``."""
    place = 0
    for pair in planes(formats, num_kv_heads):
        parts = []
        for count in (
            *(plane.codec.code_bytes(head_dim) for plane in pair),
            *(plane.codec.scale_bytes(head_dim) for plane in pair),
        ):
            parts.append(block[place : place + count * block_size])
            place += count * block_size
        for plane, codes, scales in zip(pair, parts[:2], parts[2:], strict=True):
            yield plane, _read(plane, codes, scales, block_size // tiles.TILE_TOKENS)


def _write(plane: Plane, encoded: Encoded) -> tuple[list[tiles.Bytes], list[tiles.Bytes]]:
    """The tiles of codes and of scales of a plane's vectors."""
    pack = tiles.pack_keys if plane.is_key else tiles.pack_values
    each = [slice(start, start + tiles.TILE_TOKENS) for start in range(0, len(encoded.codes), tiles.TILE_TOKENS)]
    codes = [pack(plane.codec, encoded.codes[tile]) for tile in each]
    return codes, [tiles.pack_scales(encoded.scales[tile]) for tile in each]


def _read(plane: Plane, codes: tiles.Bytes, scales: tiles.Bytes, num_tiles: int) -> Encoded:
    unpack = tiles.unpack_keys if plane.is_key else tiles.unpack_values
    each_codes: list[Codes] = [unpack(plane.codec, tile) for tile in codes.reshape(num_tiles, -1)]
    each_scales: list[Scales] = [tiles.unpack_scales(tile) for tile in scales.reshape(num_tiles, -1)]
    return Encoded(np.concatenate(each_codes), np.concatenate(each_scales))
