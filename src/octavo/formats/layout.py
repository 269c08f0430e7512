"""A whole block of the KV pool, written and read without the native core.

::

    codes    layer 0 of the block's group, layer 1, ...
               KV head 0, 1, ...
                 keys    block_size / 16 key tiles
                 values  block_size / 16 value tiles
    scales   the same order: scale tiles of the keys, then of the values

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


def planes(formats: Sequence[KVFormat], num_kv_heads: int) -> Iterator[Plane]:
    """Every plane of a block in the order they lie in it; ``formats`` are those of the group's layers."""
    for layer, kv_format in enumerate(formats):
        for head in range(num_kv_heads):
            yield Plane(layer, head, True, CODECS[kv_format.key])
            yield Plane(layer, head, False, CODECS[kv_format.value])


def write_block(formats: Sequence[KVFormat], keys: Floats, values: Floats) -> tiles.Bytes:
    """The bytes of a block from ``keys`` and ``values [layers, KV heads, block_size, head_dim]``.

    ``formats`` are those of the layers, block_size a multiple of 16 and head_dim of every codec's step.
    """
    codes, scales = [], []
    for plane in planes(formats, keys.shape[1]):
        codec, where = plane.codec, (plane.layer, plane.head)
        prepared = codec.prepare_key(keys[where]) if plane.is_key else codec.prepare_value(values[where])
        pack = tiles.pack_keys if plane.is_key else tiles.pack_values
        encoded = codec.encode(prepared)
        for start in range(0, len(prepared), tiles.TOKENS):
            tile = slice(start, start + tiles.TOKENS)
            codes.append(pack(codec, encoded.codes[tile]))
            scales.append(tiles.pack_scales(encoded.scales[tile]))
    return np.concatenate([*codes, *scales])


def read_block(
    block: tiles.Bytes, formats: Sequence[KVFormat], num_kv_heads: int, head_dim: int, block_size: int
) -> Iterator[tuple[Plane, Encoded]]:
    """Every plane of a block's bytes with its ``codes [block_size, head_dim]`` and ``scales [block_size, S]``."""
    order = list(planes(formats, num_kv_heads))
    at_codes = 0
    at_scales = sum(plane.codec.code_bytes(head_dim) * block_size for plane in order)
    for plane in order:
        codec = plane.codec
        code_end = at_codes + codec.code_bytes(head_dim) * block_size
        scale_end = at_scales + codec.scale_bytes(head_dim) * block_size
        yield plane, _read(plane, block[at_codes:code_end], block[at_scales:scale_end], block_size // tiles.TOKENS)
        at_codes, at_scales = code_end, scale_end


def _read(plane: Plane, codes: tiles.Bytes, scales: tiles.Bytes, num_tiles: int) -> Encoded:
    unpack = tiles.unpack_keys if plane.is_key else tiles.unpack_values
    each_codes: list[Codes] = [unpack(plane.codec, tile) for tile in codes.reshape(num_tiles, -1)]
    each_scales: list[Scales] = [tiles.unpack_scales(tile) for tile in scales.reshape(num_tiles, -1)]
    return Encoded(np.concatenate(each_codes), np.concatenate(each_scales))
