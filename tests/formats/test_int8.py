"""int8: within half a step, for every vector that float16 scales reach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo.formats import int8
from octavo.formats.hadamard import hadamard

LEAST_NORMAL, LEAST = 2.0**-14, 2.0**-24
"""The least normal float16, and the least above 0."""
ROWS = npst.arrays(np.float32, (2, 32), elements=st.floats(-(2.0**23), 2.0**23, width=32))


def round_trip(x):
    return int8.decode(*int8.encode(x))


@given(x=ROWS)
def test_an_element_is_off_by_half_a_step_at_most(x):
    """The scale is known to 11 bits (or to 2**-25), so the largest element may be off by more than its rounding."""
    scale = int8.encode(x).scales.astype(np.float64)
    largest = np.minimum(np.abs(x).max(axis=1, keepdims=True), 65504 * 127)
    inside = np.clip(x, -largest, largest).astype(np.float64)
    beyond = np.maximum(largest - 127 * scale, 0)
    assert np.all(np.abs(round_trip(x) - inside) <= np.maximum(0.5000001 * scale, beyond))
    normal = scale >= LEAST_NORMAL
    assert np.all((beyond <= scale / 2) | ~normal)
    assert np.all((np.abs(scale - largest / 127) <= LEAST / 2) | normal)


@given(x=ROWS)
def test_what_was_stored_is_stored_again_as_it_is(x):
    """The largest element has code 127 where the scale is a normal float16, and gives the same scale."""
    codes, scales = int8.encode(x)
    assume((scales >= LEAST_NORMAL).all())
    again = int8.encode(int8.decode(codes, scales))
    assert np.array_equal(again.codes, codes)
    assert np.array_equal(again.scales, scales)
    assert (np.abs(codes.astype(int)).max(axis=1) == 127).all()


@given(x=ROWS)
def test_the_negative_of_a_vector_has_the_negative_codes(x):
    codes, scales = int8.encode(x)
    opposite = int8.encode(-x)
    assert np.array_equal(opposite.codes, -codes)
    assert np.array_equal(opposite.scales, scales)


def test_ties_go_to_the_even_code():
    x = np.full((1, 32), 127, np.float32)  # a scale of exactly 1
    x[0, :6] = [0.5, 1.5, 2.5, -0.5, -1.5, 126.5]
    codes, scales = int8.encode(x)
    assert scales[0, 0] == 1
    assert np.array_equal(codes[0, :7], [0, 2, 2, 0, -2, 126, 127])


@pytest.mark.parametrize("number", [1.0, -3.25, 0.01, 65504.0, 8e6])
def test_a_constant_vector_comes_back_within_a_float16_rounding(number):
    x = np.full((1, 64), number, np.float32)
    assert np.all(int8.encode(x).codes == (127 if number > 0 else -127))
    assert np.allclose(round_trip(x), x, rtol=2.0**-11, atol=0)


def test_one_huge_element_hides_the_others():
    x = np.ones((1, 32), np.float32)
    x[0, 5] = 1000
    back = round_trip(x)[0]
    assert back[5] == pytest.approx(1000, rel=2.0**-11)
    assert not np.delete(back, 5).any()


def test_infinities_and_what_float16_scales_cannot_reach_become_the_largest():
    x = np.zeros((3, 32), np.float32)
    x[0, :3] = [np.inf, -np.inf, 65504]
    x[1, :3] = [1e30, -1e38, 65504 * 127]
    x[2, :3] = [np.nan, 1, -1]
    codes, scales = int8.encode(x)
    assert np.array_equal(codes[:, :3], [[127, -127, 1], [127, -127, 127], [0, 127, -127]])
    assert np.array_equal(scales[:2, 0], [65504, 65504])


def test_a_vector_too_small_for_a_scale_is_zero():
    x = np.full((2, 32), 127 * LEAST / 2, np.float32)  # the scale is a tie between 0 and the least float16: even is 0
    x[1] *= np.float32(1.001)
    codes, scales = int8.encode(x)
    assert np.array_equal(scales[:, 0], [0, LEAST])
    assert not codes[0].any()
    assert (codes[1] == 64).all()


def test_keys_are_turned_and_values_are_not():
    x = np.random.default_rng(0).normal(0, 1, (2, 64)).astype(np.float32)
    assert np.array_equal(int8.encode_key(x).codes, int8.encode(hadamard(x)).codes)
    assert np.array_equal(int8.encode_value(x).codes, int8.encode(x).codes)
