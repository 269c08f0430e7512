"""Tiles: where the code of each token and dimension lies, and that nothing is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.formats import tiles
from octavo.formats.kv_format import CODECS

HEAD_DIMS = (32, 64, 96, 128)


@pytest.fixture(params=CODECS)
def codec(request):
    return CODECS[request.param]


def codes_of(codec, head_dim):
    """Random codes, of 4 bits where the codec has no more."""
    rng = np.random.default_rng(head_dim)
    bits = rng.integers(0, 2**codec.BITS, (16, head_dim), dtype=np.uint16)
    return bits.astype(f"u{max(codec.BITS, 8) // 8}").view(codec.CODE_TYPE)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_what_is_packed_comes_back(codec, head_dim):
    codes = codes_of(codec, head_dim)
    for pack, unpack in ((tiles.pack_keys, tiles.unpack_keys), (tiles.pack_values, tiles.unpack_values)):
        tile = pack(codec, codes)
        assert tile.dtype == np.uint8
        assert tile.shape == (16 * codec.code_bytes(head_dim),)
        found = unpack(codec, tile)
        assert found.dtype == codec.CODE_TYPE
        assert np.array_equal(found, codes)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_scales_come_back(codec, head_dim):
    count = codec.scale_bytes(head_dim) // 2
    scales = np.arange(16 * count).astype(np.float16).reshape(16, count)
    tile = tiles.pack_scales(scales)
    assert tile.shape == (16 * codec.scale_bytes(head_dim),)
    assert np.array_equal(tiles.unpack_scales(tile), scales)


def test_elements_of_8_and_16_bits_lie_where_the_layout_says(codec):
    if codec.BITS == 4:
        codec = CODECS["int8"]
    head_dim = 48
    codes = codes_of(codec, head_dim)
    keys = tiles.pack_keys(codec, codes).view(codec.CODE_TYPE)
    values = tiles.pack_values(codec, codes).view(codec.CODE_TYPE)
    for token in range(16):
        for dim in range(head_dim):
            assert keys[(dim // 2 * 16 + token) * 2 + dim % 2] == codes[token, dim]
            assert values[(token // 2 * head_dim + dim) * 2 + token % 2] == codes[token, dim]


def test_dimensions_j_and_j_plus_16_of_32_share_a_byte_in_4_bits():
    codec, head_dim = CODECS["int4"], 96
    codes = codes_of(codec, head_dim)
    keys, values = tiles.pack_keys(codec, codes), tiles.pack_values(codec, codes)
    for token in range(16):
        for dim in range(head_dim):
            group, within = divmod(dim, 32)
            shift, j = 4 * (within // 16), within % 16
            key = keys[((group * 8 + j // 2) * 16 + token) * 2 + j % 2]  # [head_dim / 32][8 pairs][16][2]
            value = values[((token // 2 * (head_dim // 32) + group) * 16 + j) * 2 + token % 2]  # [8][head_dim / 32]...
            assert key >> shift & 15 == codes[token, dim]
            assert value >> shift & 15 == codes[token, dim]


def test_scales_of_16_tokens_lie_side_by_side():
    scales = np.arange(16 * 6).astype(np.float16).reshape(16, 6)  # 3 groups: scale and minimum each
    tile = tiles.pack_scales(scales).view(np.float16).reshape(3, 2, 16)
    for token in range(16):
        for group in range(3):
            assert np.array_equal(tile[group, :, token], scales[token, 2 * group : 2 * group + 2])
