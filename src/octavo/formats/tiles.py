"""Tiles: how the codes and scales of 16 tokens lie in the KV pool, for one layer and KV head.

An element is a code of 16 or 8 bits. Codes of 4 bits make elements of 8 first: dimensions j and j + 16 of each 32
share one, j in its low half, which leaves half as many elements::

    key tile     [elements / 2][16 tokens][2]    two neighbouring elements of each token side by side
    value tile   [8][elements][2]                two neighbouring tokens side by side
    scale tile   [S][16 tokens]                  float16

Both are what a dot product of pairs reads: along the elements of a key, along the tokens of a value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats.codec import Codec, Codes, Scales

TILE_TOKENS = 16
"""A block holds a whole number of tiles."""
_HALF = 16
"""Dimensions j and j + 16 share a byte in 4 bits."""

Bytes = npt.NDArray[np.uint8]


def pack_keys(codec: Codec, codes: Codes) -> Bytes:
    """The bytes of a key tile from ``codes [16, head_dim]``."""
    return _bytes(_elements(codec, codes).reshape(TILE_TOKENS, -1, 2).transpose(1, 0, 2))


def unpack_keys(codec: Codec, tile: Bytes) -> Codes:
    """``codes [16, head_dim]`` of a key tile."""
    elements = tile.view(codec.CODE_TYPE).reshape(-1, TILE_TOKENS, 2)
    return _codes(codec, elements.transpose(1, 0, 2).reshape(TILE_TOKENS, -1))


def pack_values(codec: Codec, codes: Codes) -> Bytes:
    """The bytes of a value tile from ``codes [16, head_dim]``."""
    elements = _elements(codec, codes)
    return _bytes(elements.reshape(TILE_TOKENS // 2, 2, -1).transpose(0, 2, 1))


def unpack_values(codec: Codec, tile: Bytes) -> Codes:
    """``codes [16, head_dim]`` of a value tile."""
    elements = tile.view(codec.CODE_TYPE).reshape(TILE_TOKENS // 2, -1, 2)
    return _codes(codec, elements.transpose(0, 2, 1).reshape(TILE_TOKENS, -1))


def pack_scales(scales: Scales) -> Bytes:
    """The bytes of a scale tile from ``scales [16, S]``; none if S is 0."""
    return _bytes(scales.T)


def unpack_scales(tile: Bytes) -> Scales:
    """``scales [16, S]`` of a scale tile."""
    return np.ascontiguousarray(tile.view(np.float16).reshape(tile.size // (2 * TILE_TOKENS), TILE_TOKENS).T)


def _bytes(array: npt.NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _elements(codec: Codec, codes: Codes) -> Codes:
    if codec.BITS > 4:
        return codes
    low, high = np.moveaxis(codes.reshape(TILE_TOKENS, -1, 2, _HALF), 2, 0)
    return (low | high << 4).reshape(TILE_TOKENS, -1)


def _codes(codec: Codec, elements: Codes) -> Codes:
    if codec.BITS > 4:
        return elements
    shared = elements.reshape(TILE_TOKENS, -1, 1, _HALF)
    return np.concatenate([shared & 15, shared >> 4], axis=2).reshape(TILE_TOKENS, -1)
