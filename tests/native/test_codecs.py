"""Every codec writes what its numpy twin writes, bit for bit: in every place, on every instruction set.

Attention only reads what is stored, so whatever a format costs is in these bytes; what it makes of them is compared in
``tests/engine`` and ``tests/exactness``.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from transparent_model import Transparent

from octavo.formats.kv_format import CODECS, KVFormat
from octavo.formats.layout import read_block, write_block


def pairs_for(head_dim):
    """Every pair of codecs that can hold it."""
    names = [name for name, codec in CODECS.items() if head_dim % codec.HEAD_DIM_STEP == 0]
    return [KVFormat(key, value) for key, value in itertools.product(names, repeat=2)]


def model_of(native, isa, formats, **changes):
    """A model with one layer, and one layer in the pool, for each of ``formats``."""
    pool = {"key_formats": [f.key for f in formats], "value_formats": [f.value for f in formats]}
    changes = {"windows": (0,) * len(formats)} | changes
    return Transparent(native, isa, pool=pool, **changes)


def whole_numbers_times_powers_of_two(case_shape, num_layers, powers):
    """Weights of keys and values whose rows differ by powers of two: any magnitude, and sums without rounding."""
    rng = np.random.default_rng(2)
    rows, hidden = case_shape
    return {
        (slot, layer): rng.integers(-3, 4, (rows, hidden)) * 2.0 ** rng.integers(*powers, (rows, 1))
        for slot in ("k", "v")
        for layer in range(num_layers)
    }


def assert_blocks_are_the_twins(case, formats, tokens, tables, layers_of_group):
    """All bytes of the sequence's blocks, slots that nobody wrote and the padding included."""
    shape, size = case.shape, case.block_size
    capacity = len(tables[0]) * size
    for group, layers in enumerate(layers_of_group):
        written = np.zeros((2, len(layers), shape.num_kv_heads, capacity, shape.head_dim), np.float32)
        for index, layer in enumerate(layers):
            written[:, index, :, : len(tokens)] = case.expected(tokens, np.arange(len(tokens)), layer)
        for number, block in enumerate(tables[group]):
            keys, values = written[:, :, :, number * size : (number + 1) * size]
            wanted = write_block([formats[layer] for layer in layers], keys, values)
            found = case.pool.block(block)
            differing = np.flatnonzero(found[: wanted.size] != wanted)
            assert not len(differing), where(case, formats, layers, found, wanted, size)
            assert not found[wanted.size :].any()


def where(case, formats, layers, found, wanted, size):
    """What differs, for who reads a failure: the planes, and the first token and code of each."""
    shape = case.shape
    arguments = ([formats[layer] for layer in layers], shape.num_kv_heads, shape.head_dim, size)
    planes = zip(read_block(found[: wanted.size], *arguments), read_block(wanted, *arguments), strict=True)
    differing = []
    for (plane, got), (_, want) in planes:
        side = (
            f"{plane.codec.NAME} {'key' if plane.is_key else 'value'}, layer {layers[plane.layer]}, head {plane.head}"
        )
        for what, a, b in (
            ("scale", got.scales.view(np.uint16), want.scales.view(np.uint16)),
            ("code", got.codes, want.codes),
        ):
            for slot, place in np.argwhere(a != b)[:1]:
                differing.append(f"{side}, slot {slot}, {what} {place}: {a[slot, place]:#x}, not {b[slot, place]:#x}")
    return "\n".join(differing)


@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128])
def test_every_pair_of_codecs_writes_what_the_twins_write(native, isa, head_dim, block_size):
    """Three chunks, the second and third of which go on in the middle of a block and of a tile."""
    formats = pairs_for(head_dim)
    weights = whole_numbers_times_powers_of_two((2 * head_dim, 32), len(formats), (-6, 7))
    case = model_of(native, isa, formats, head_dim=head_dim, block_size=block_size, threads=2, tensors=weights)
    assert case.pool.block_bytes == -(-2 * block_size * sum(f.bytes_per_token(head_dim) for f in formats) // 64) * 64
    tokens = np.random.default_rng(3).integers(0, case.shape.vocab_size, 75)
    tables = [[3, 1, 6, 2, 5][: -(-75 // block_size)]]
    for start, end in ((0, 41), (41, 74), (74, 75)):
        case.forward(tokens[start:end], end, tables)
    assert_blocks_are_the_twins(case, formats, tokens, tables, [range(len(formats))])


def test_layers_of_two_groups_have_formats_of_their_own(native, isa):
    formats = [KVFormat("int8", "int4"), KVFormat("bf16", "bf16"), KVFormat("int4", "fp8"), KVFormat("fp8", "int8")]
    case = model_of(native, isa, formats, head_dim=32, block_size=32, windows=(0, 24, 24, 0))
    tokens = np.random.default_rng(4).integers(0, case.shape.vocab_size, 40)
    tables = [[1, 2], [3, 4]]
    case.forward(tokens, 40, tables)
    assert_blocks_are_the_twins(case, formats, tokens, tables, [[0, 3], [1, 2]])


@pytest.mark.parametrize(
    "powers", [(-30, -22), (-24, -12), (12, 22), (40, 50)], ids=["scale 0", "subnormal scale", "clamped", "all clamped"]
)
def test_numbers_that_float16_scales_hardly_reach_are_written_as_the_twins_do(native, isa, powers):
    formats = pairs_for(64)
    weights = whole_numbers_times_powers_of_two((2 * 64, 32), len(formats), powers)
    case = model_of(native, isa, formats, head_dim=64, block_size=32, tensors=weights)
    tokens = np.random.default_rng(5).integers(0, case.shape.vocab_size, 50)
    case.forward(tokens, 50, [[1, 2]])
    assert_blocks_are_the_twins(case, formats, tokens, [[1, 2]], [range(len(formats))])


def test_zeros_of_either_sign_constants_and_single_large_elements_are_written_as_the_twins_do(native, isa):
    """Four heads. Keys of zero turn to zeros of both signs, for a sine or cosine may be negative."""
    formats, dim = pairs_for(64), 64
    weights = {}
    for slot, layer in itertools.product(("k", "v"), range(len(formats))):
        rows = np.random.default_rng(6).integers(-3, 4, (4, dim, 32)).astype(np.float64)
        rows[0] = 0
        rows[1] = rows[1, :1]  # all elements of a vector alike
        rows[2, 7] *= 2**10
        rows[3] *= np.arange(dim)[:, None] == 13  # one element, the others zero
        weights[slot, layer] = rows.reshape(4 * dim, 32)
    case = model_of(native, isa, formats, head_dim=dim, num_kv_heads=4, block_size=32, tensors=weights)
    tokens = np.random.default_rng(7).integers(0, case.shape.vocab_size, 64)
    case.forward(tokens, 64, [[1, 2]])
    keys, _ = case.expected(tokens, np.arange(64), 0)
    assert not keys[0].any()
    assert np.signbit(keys[0]).any()
    assert_blocks_are_the_twins(case, formats, tokens, [[1, 2]], [range(len(formats))])


@pytest.mark.parametrize("kv_format", [KVFormat(name, name) for name in ("int8", "fp8", "int4")], ids=str)
def test_nan_and_infinities_are_written_as_the_twins_do(native, isa, kv_format):
    """One layer: what attention makes of such keys is not the point here, and reaches the next."""
    dim = 64
    weights = {}
    for slot in ("k", "v"):
        rows = np.random.default_rng(8).integers(-3, 4, (2, dim, 32)).astype(np.float32)
        rows[0, 3, 5] = np.inf  # an infinity of the sign of the token's input
        rows[0, 40, 6:8] = np.inf  # one, or NaN where the two cancel
        rows[1, 9, 0] = np.nan
        weights[slot, 0] = rows.reshape(2 * dim, 32)
    case = model_of(native, isa, [kv_format], head_dim=dim, block_size=32, tensors=weights)
    tokens = np.random.default_rng(9).integers(0, case.shape.vocab_size, 50)
    with np.errstate(invalid="ignore"):
        case.forward(tokens, 50, [[1, 2]])
        assert_blocks_are_the_twins(case, [kv_format], tokens, [[1, 2]], [[0]])


def test_a_bf16_key_that_is_not_finite_stays_so_and_a_value_does_not(native, isa):
    dim = 64
    weights = {}
    for slot in ("k", "v"):
        rows = np.random.default_rng(8).integers(-3, 4, (2, dim, 32)).astype(np.float32)
        rows[0, 3, 5] = np.inf
        rows[1, 9, 0] = np.nan
        weights[slot, 0] = rows.reshape(2 * dim, 32)
    formats = [KVFormat("bf16", "bf16")]
    case = model_of(native, isa, formats, head_dim=dim, block_size=32, tensors=weights)
    tokens = np.arange(32)
    with np.errstate(invalid="ignore"):
        case.forward(tokens, 32, [[1]])
        keys, values = case.expected(tokens, np.arange(32), 0)
    bf16 = CODECS["bf16"]
    for plane, stored in read_block(case.pool.block(1), formats, 2, dim, 32):
        found = bf16.decode(*stored)
        if plane.is_key:
            wanted = bf16.decode(*bf16.encode_key(keys[plane.head]))
            assert np.array_equal(found, wanted, equal_nan=True)
            assert not np.isfinite(found).all()
        else:
            wanted = bf16.encode_value(values[plane.head])
            assert np.array_equal(stored.codes, wanted.codes)
            assert np.isfinite(found).all()
