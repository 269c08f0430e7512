"""What the KV pool's bytes are: rotated keys and plain values, each in its place, and zeros everywhere else.

The layout is part of what a stored cache means: whoever changes what is pinned here raises ``LAYOUT_VERSION``. It is
seen from outside, by models whose keys and values are known. What other formats than bf16 write is in
``test_codecs.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from transparent_model import Transparent, factors


def read_block(pool, shape, block_size, block, layer_index):
    """Keys and values ``[heads, block_size, head_dim]`` (bf16 bits) of a block's layer, by the documented layout."""
    heads, dim, tiles = shape.num_kv_heads, shape.head_dim, block_size // 16
    planes = pool.block(block).view(np.uint16)
    planes = planes[: planes.size // (2 * heads * block_size * dim) * 2 * heads * block_size * dim]
    keys, values = planes.reshape(-1, heads, 2, block_size * dim)[layer_index].transpose(1, 0, 2)
    keys = keys.reshape(heads, tiles, dim // 2, 16, 2).transpose(0, 1, 3, 2, 4).reshape(heads, block_size, dim)
    values = values.reshape(heads, tiles, 8, dim, 2).transpose(0, 1, 2, 4, 3).reshape(heads, block_size, dim)
    return keys, values


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (0, 0, 0), "num_heads": 4, "num_kv_heads": 2, "head_dim": 16},
        {"windows": (0,), "num_heads": 3, "num_kv_heads": 1, "head_dim": 48, "hidden_size": 30},
        {"windows": (0, 24, 0, 24), "num_heads": 2, "num_kv_heads": 2, "head_dim": 80, "tie_word_embeddings": False},
    ],
    ids=["gqa", "mqa", "hybrid"],
)
def test_keys_after_rope_and_values_lie_where_the_layout_says(native, isa, changes):
    """`[layer][head]`: keys `[block_size / 16][head_dim / 2][16][2]`, values `[block_size / 16][8][head_dim][2]`."""
    case = Transparent(native, isa, threads=2, **changes)
    shape, block_size = case.shape, case.block_size
    windows = list(dict.fromkeys(shape.windows))
    tokens = np.random.default_rng(3).integers(0, shape.vocab_size, 75)
    tables = [[1 + group, 3 + group, 5 + group] for group in range(len(windows))]
    case.forward(tokens[:40], 40, tables)
    case.forward(tokens[40:], 75, tables)  # a second chunk goes on in the middle of a block
    for layer, window in enumerate(shape.windows):
        index = shape.windows[:layer].count(window)
        expected = [native.to_bf16(x) for x in case.expected(tokens, np.arange(75), layer)]
        for number, block in enumerate(tables[windows.index(window)]):
            found = read_block(case.pool, shape, block_size, block, index)
            part = slice(number * block_size, min(75, (number + 1) * block_size))
            for written, wanted in zip(found, expected, strict=True):
                count = part.stop - part.start
                assert np.array_equal(written[:, :count], wanted[:, part])
                assert not written[:, count:].any()


def test_block_bytes_are_the_layout_rounded_up_to_64(native):
    for shape in (native.Shape(), native.Shape(windows=(0, 8, 8)), native.Shape(num_kv_heads=1, head_dim=80)):
        pool = native.pool_of(shape, block_size=48, num_blocks=3)
        windows = list(shape.windows)
        layers = max(windows.count(w) for w in windows)
        payload = layers * shape.num_kv_heads * 2 * 48 * shape.head_dim * 2
        assert pool.block_bytes == -(-payload // 64) * 64
        assert pool.nbytes == 3 * pool.block_bytes
        assert pool.num_blocks == 3
        addresses = [pool.block(b).__array_interface__["data"][0] for b in range(3)]
        assert np.all(np.diff(addresses) == pool.block_bytes)


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 100.0])
def test_rotary_factors_are_correctly_rounded_up_to_position_131072(native, isa, theta):
    """Each tested token's key is its own (sin, cos), as float32 in three bf16 pieces: RoPE turns it to (0, 1).

    The first half is sin * cos - cos * sin, which is exactly zero if and only if the core's factors are bit for bit
    those of numpy's double precision, rounded once (a difference of one unit in the last place shows).
    """
    positions = np.asarray(
        [0, 1, 2, 3, 15, 100, 1000, 4095, 8191, 32768, 99991, 114514, 131000, 131070, 131071, 131072]
    )
    count, dim, block_size = len(positions), 64, 1024  # 16 tokens: the norm of a one-hot embedding is a power of two
    shape = native.Shape(
        vocab_size=count,
        hidden_size=4 * count,
        num_heads=1,
        num_kv_heads=1,
        head_dim=dim,
        windows=(16,),
        norm_eps=0.0,
        theta=theta,
    )
    cos, sin = factors(positions, shape.inv_freq)
    wanted = np.concatenate([sin, cos], 1)  # [tokens, head_dim]
    weights = np.zeros((dim, count, 4), np.float32)
    rest = wanted.copy()
    for piece in range(3):
        rounded = native.from_bf16(native.to_bf16(rest))
        weights[:, :, piece] = rounded.T
        rest -= rounded
    assert not rest.any()
    embed = np.kron(np.eye(count), np.full(4, 1.0))  # token t is one in places 4 t to 4 t + 3
    tensors = {("embed", -1): embed, ("attn_norm", 0): np.full(4 * count, 0.25), ("k", 0): weights.reshape(dim, -1)}
    model, pool = (
        native.model_of(shape, isa, tensors=tensors),
        native.pool_of(shape, block_size=1024, num_blocks=count + 1),
    )
    width = 131072 // block_size + 1
    tables = np.zeros((1, count, width), np.int32)  # what came before is read as the null block's zeros
    tables[0, np.arange(count), positions // block_size] = 1 + np.arange(count)
    model.forward(
        pool,
        np.arange(count, dtype=np.int32),
        np.arange(count + 1, dtype=np.int32),
        (positions + 1).astype(np.int32),
        tables,
        np.zeros((0, 2), np.int32),
        np.asarray([0], np.int32),
        np.zeros((1, count), np.float32),
    )
    for token, position in enumerate(positions):
        keys, _ = read_block(pool, shape, block_size, 1 + token, 0)
        turned = native.from_bf16(keys[0, position % block_size])
        assert np.array_equal(turned[: dim // 2], np.zeros(dim // 2)), position
        assert np.array_equal(turned[dim // 2 :], np.ones(dim // 2)), position


def test_a_zeroed_block_is_zero_beyond_what_was_written(native, isa):
    """A reused block holds what others left, NaN included; a copy from the null block clears it before the pass."""
    case = Transparent(native, isa)
    tokens = np.arange(40)
    clean = case.forward(tokens, 40, [[1, 2]])
    for block in (1, 2, 3, 4):
        case.pool.block(block)[:] = 0xFF  # NaN, in every place
    again = case.forward(tokens, 40, [[3, 4]], copies=[(0, 3), (0, 4)])
    assert np.array_equal(again, clean)
    for layer in range(2):
        for written in read_block(case.pool, case.shape, case.block_size, 4, layer):
            assert written[:, :8].any()
            assert not written[:, 8:].any()
    assert np.all(case.pool.block(1) == 0xFF)  # nobody asked for this one
    assert not case.pool.block(0).any()


def test_copies_happen_in_order_before_anything_is_computed(native, isa):
    case = Transparent(native, isa)
    tokens = np.arange(40)
    expected = case.forward(tokens, 40, [[1, 2]])
    first, second = case.pool.block(1).copy(), case.pool.block(2).copy()
    # 2 -> 5, then 1 -> 2, then 5 -> 1, and 0 -> 6 -> 5: the halves change places and 5 is zero again.
    got = case.forward(tokens[-1:], 40, [[2, 1]], copies=[(2, 5), (1, 2), (5, 1), (0, 6), (6, 5)])
    assert np.array_equal(got, expected)
    assert np.array_equal(case.pool.block(2), first)
    assert np.array_equal(case.pool.block(1), second)
    assert not case.pool.block(5).any()
    assert not case.pool.block(0).any()


def test_decoding_writes_one_slot_and_leaves_every_other_byte(native, isa):
    case = Transparent(native, isa)
    case.forward(np.arange(33), 33, [[1, 2]])

    def planes():
        return np.concatenate([read_block(case.pool, case.shape, case.block_size, 2, layer) for layer in range(2)])

    before = [case.pool.block(b).copy() for b in range(8)], planes().copy()
    case.forward([60], 34, [[1, 2]])
    for block in (0, 1, 3, 4, 5, 6, 7):
        assert np.array_equal(case.pool.block(block), before[0][block])
    differs = planes() != before[1]  # [layers and K, V][heads][slots][head_dim]
    assert np.all(differs.any(axis=-1)[:, :, 1])
    assert not np.delete(differs, 1, axis=2).any()
