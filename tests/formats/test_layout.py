"""A whole block: what lies where, for layers of different formats."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from octavo.formats import tiles
from octavo.formats.kv_format import CODECS, KVFormat
from octavo.formats.layout import read_block, write_block

PAIRS = [KVFormat(key, value) for key, value in itertools.product(CODECS, repeat=2)]


def random(*shape):
    return np.random.default_rng(5).normal(0, 1, shape).astype(np.float32)


@pytest.mark.parametrize("kv_format", PAIRS, ids=str)
@pytest.mark.parametrize("block_size", [16, 48])
def test_a_block_holds_what_each_codec_makes_of_keys_and_values(kv_format, block_size):
    formats = (kv_format, KVFormat("int8", "bf16"), kv_format)
    keys, values = random(2, 3, 2, block_size, 64)
    block = write_block(formats, keys, values)
    assert block.size == 2 * block_size * sum(layer.bytes_per_token(64) for layer in formats)
    for plane, (codes, scales) in read_block(block, formats, 2, 64, block_size):
        codec, where = plane.codec, (plane.layer, plane.head)
        wanted = codec.encode_key(keys[where]) if plane.is_key else codec.encode_value(values[where])
        assert np.array_equal(codes, wanted.codes)
        assert np.array_equal(scales, wanted.scales)


TILES = (slice(0, 16), slice(16, 32))


def test_planes_lie_by_layer_then_head_codes_before_scales_and_keys_before_values():
    formats = (KVFormat("int8", "int4"), KVFormat("bf16", "fp8"))
    keys, values = random(2, 2, 2, 32, 32)
    found, place = [], 0
    block = write_block(formats, keys, values)
    for layer, kv_format in enumerate(formats):
        for head in range(2):
            key, value = CODECS[kv_format.key], CODECS[kv_format.value]
            key_codes, key_scales = key.encode_key(keys[layer, head])
            value_codes, value_scales = value.encode_value(values[layer, head])
            parts = [tiles.pack_keys(key, key_codes[tile]) for tile in TILES]
            parts += [tiles.pack_values(value, value_codes[tile]) for tile in TILES]
            parts += [tiles.pack_scales(scales[tile]) for scales in (key_scales, value_scales) for tile in TILES]
            for part in parts:
                found.append(np.array_equal(block[place : place + part.size], part))
                place += part.size
    assert all(found)
    assert len(found) == 32
    assert place == block.size


@pytest.mark.parametrize("kv_format", PAIRS, ids=str)
def test_slots_that_nobody_wrote_are_zero(kv_format):
    keys, values = random(2, 1, 1, 32, 32)
    keys[:, :, 5:], values[:, :, 5:] = 0, 0
    for _, (codes, scales) in read_block(write_block([kv_format], keys, values), [kv_format], 1, 32, 32):
        assert codes[:5].any()
        assert not codes[5:].any()
        assert not scales[5:].view(np.uint16).any()
