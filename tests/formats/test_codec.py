"""What is true of every codec: its sizes, its shapes, zeros, and what it makes of numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo.formats.codec import Codec
from octavo.formats.kv_format import CODECS

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY = st.floats(width=32)


def vectors(elements=FLOATS, dims=(32, 64, 96)):
    """Arrays ``[n, head_dim]`` float32 that every codec can hold."""
    shapes = st.tuples(st.integers(1, 4), st.sampled_from(dims))
    return shapes.flatmap(lambda shape: npst.arrays(np.float32, shape, elements=elements))


@pytest.fixture(params=CODECS)
def codec(request):
    return CODECS[request.param]


def test_a_codec_has_all_of_the_protocol(codec):
    named = {name for name in vars(Codec) if not name.startswith("_")} | set(Codec.__annotations__)
    assert len(named) == 9
    assert {name for name in named if not hasattr(codec, name)} == set()
    assert CODECS[codec.NAME] is codec


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 512])
def test_codes_and_scales_are_as_many_as_the_sizes_say(codec, head_dim):
    codes, scales = codec.encode_value(np.ones((3, head_dim), np.float32))
    assert codes.shape == (3, head_dim)
    assert codes.dtype == codec.CODE_TYPE
    assert scales.dtype == np.float16
    assert head_dim * codec.BITS == 8 * codec.code_bytes(head_dim)
    assert scales.shape == (3, codec.scale_bytes(head_dim) // 2)
    assert codec.decode(codes, scales).dtype == np.float32


def test_no_vectors_are_no_vectors(codec):
    none = np.zeros((0, 32), np.float32)
    assert codec.decode(*codec.encode_key(none)).shape == (0, 32)


def test_zeros_are_zero_bytes(codec):
    """A slot that nobody has written is zero: it reads as a vector of zeros, and a vector of zeros is written so."""
    zeros = np.zeros((2, 64), np.float32)
    for encode in (codec.encode_key, codec.encode_value):
        codes, scales = encode(zeros)
        assert not codes.any()
        assert not scales.view(np.uint16).any()
        assert not codec.decode(codes, scales).view(np.uint32).any()


@given(x=vectors(ANY))
def test_whatever_comes_in_is_left_as_it_is_and_written_the_same_alone_and_in_a_batch(x):
    before = x.copy()
    for codec in CODECS.values():
        for encode in (codec.encode_key, codec.encode_value):
            codes, scales = encode(x)
            assert np.array_equal(x.view(np.uint32), before.view(np.uint32))
            for row in range(len(x)):
                alone = encode(x[row : row + 1])
                assert np.array_equal(alone.codes[0], codes[row])
                assert np.array_equal(alone.scales[0].view(np.uint16), scales[row].view(np.uint16))


@given(x=vectors(ANY))
def test_a_stored_value_is_finite_whatever_was_computed(x):
    """A masked probability of 0 must not meet an infinity."""
    for codec in CODECS.values():
        codes, scales = codec.encode_value(x)
        assert np.isfinite(scales).all()
        assert np.isfinite(codec.decode(codes, scales)).all()


@given(x=vectors(ANY))
def test_a_stored_key_is_finite_but_in_bf16(x):
    for codec in CODECS.values():
        codes, scales = codec.encode_key(x)
        assert np.isfinite(scales).all()
        assert codec.NAME == "bf16" or np.isfinite(codec.decode(codes, scales)).all()


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
@given(x=vectors(FLOATS), data=st.data())
def test_a_nan_is_stored_as_the_zero_it_replaces(name, x, data):
    spoilt = x.copy()
    spoilt[data.draw(npst.arrays(bool, x.shape))] = np.nan
    wanted = CODECS[name].encode_value(np.where(np.isnan(spoilt), np.float32(0), spoilt))
    found = CODECS[name].encode_value(spoilt)
    assert np.array_equal(found.codes, wanted.codes)
    assert np.array_equal(found.scales, wanted.scales)
