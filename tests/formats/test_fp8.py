"""fp8: E4M3 as torch has it, scaled so that the largest element of a vector is 448."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo.formats import fp8
from octavo.formats.hadamard import hadamard

LEAST_NORMAL, LEAST = 2.0**-14, 2.0**-24
ROWS = npst.arrays(np.float32, (2, 32), elements=st.floats(-(2.0**24), 2.0**24, width=32))


def by_torch(y):
    return torch.from_numpy(np.ascontiguousarray(y)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def same(found, wanted):
    return np.array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_every_code_is_the_number_torch_says():
    codes = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    found = fp8.from_e4m3(codes)
    number = ~np.isnan(wanted)
    assert np.array_equal(np.flatnonzero(~number), [0x7F, 0xFF])
    assert same(found[number], wanted[number])
    assert np.isnan(found[~number]).all()


def test_every_number_is_its_own_code():
    codes = np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])
    assert np.array_equal(fp8.to_e4m3(fp8.from_e4m3(codes)), codes)


def test_every_float16_in_range_is_rounded_as_torch_does():
    y = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    y = y[np.abs(y) <= 448]
    assert len(y) > 40000
    assert np.array_equal(fp8.to_e4m3(y), by_torch(y))


def test_ties_and_their_neighbours_are_rounded_as_torch_does():
    numbers = np.sort(np.unique(fp8.from_e4m3(np.delete(np.arange(256), [0x7F, 0xFF]))))
    ties = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    y = np.concatenate([ties, np.nextafter(ties, np.float32(-448)), np.nextafter(ties, np.float32(448))])
    codes = fp8.to_e4m3(y)
    assert np.array_equal(codes, by_torch(y))
    assert not (codes[: len(ties)] & 1).any()


@given(y=npst.arrays(np.float32, 64, elements=st.floats(-448, 448, width=32)))
def test_any_float32_in_range_is_rounded_as_torch_does(y):
    assert np.array_equal(fp8.to_e4m3(y), by_torch(y))


@given(exponent=st.integers(-20, -5), mantissas=npst.arrays(np.uint32, 64, elements=st.integers(0, 2**24 - 1)))
def test_subnormals_are_rounded_as_torch_does(exponent, mantissas):
    y = np.ldexp(mantissas.astype(np.float32), exponent - 23)
    assert np.array_equal(fp8.to_e4m3(y), by_torch(y))
    assert np.array_equal(fp8.to_e4m3(-y), by_torch(-y))


@given(x=ROWS)
def test_an_element_is_off_by_half_a_step_at_most(x):
    """A step is an eighth of the power of two below, or 2**-9 below 2**-6, times the scale."""
    codes, scales = fp8.encode(x)
    assert not np.isin(codes, [0x7F, 0xFF]).any()
    scale = scales.astype(np.float64)
    largest = np.minimum(np.abs(x).max(axis=1, keepdims=True), 65504 * 448)
    inside = np.clip(x, -largest, largest).astype(np.float64)
    beyond = np.maximum(largest - 448 * scale, 0)
    step = scale * np.maximum(np.abs(fp8.from_e4m3(codes)).astype(np.float64) / 8, 2.0**-9)
    assert np.all(np.abs(fp8.decode(codes, scales) - inside) <= np.maximum(step * 0.5000001, beyond))
    normal = scale >= LEAST_NORMAL
    assert np.all((beyond <= 16 * scale) | ~normal)
    assert np.all((np.abs(scale - largest / 448) <= LEAST / 2) | normal)


@given(x=ROWS)
def test_what_was_stored_is_stored_again_as_it_is(x):
    codes, scales = fp8.encode(x)
    assume((scales >= LEAST_NORMAL).all())
    again = fp8.encode(fp8.decode(codes, scales))
    assert np.array_equal(again.codes, codes)
    assert np.array_equal(again.scales, scales)


def test_a_zero_keeps_its_sign_where_there_is_a_scale():
    x = np.zeros((2, 32), np.float32)
    x[:, 1] = -0.0
    x[:, 2] = [-(2.0**-12), 0]  # rounds to a zero in the first, whose largest is 448
    x[0, 3] = 448
    codes, _ = fp8.encode(x)
    assert np.array_equal(codes[0, :4], [0, 0x80, 0x80, 0x7E])
    assert not codes[1].any()


@pytest.mark.parametrize("number", [1.0, -3.25, 0.03, 65504.0, 2e7])
def test_a_constant_vector_comes_back_within_a_float16_rounding(number):
    x = np.full((1, 64), number, np.float32)
    codes, scales = fp8.encode(x)
    assert np.all(codes == (0x7E if number > 0 else 0xFE))
    assert np.allclose(fp8.decode(codes, scales), x, rtol=2.0**-11, atol=0)


def test_one_huge_element_leaves_the_others_what_their_exponents_allow():
    x = np.ones((1, 32), np.float32)
    x[0, 5] = 1000
    back = fp8.decode(*fp8.encode(x))[0]
    assert np.allclose(np.delete(back, 5), 1, rtol=1 / 16)


def test_infinities_and_what_float16_scales_cannot_reach_become_the_largest():
    x = np.zeros((3, 32), np.float32)
    x[0, :3] = [np.inf, -np.inf, 65504]
    x[1, :3] = [1e30, -1e38, 65504 * 448]
    x[2, :3] = [np.nan, 1, -1]
    codes, scales = fp8.encode(x)
    assert np.array_equal(codes[:, :3], [[0x7E, 0xFE, 0x38], [0x7E, 0xFE, 0x7E], [0, 0x7E, 0xFE]])
    assert np.array_equal(scales[:2, 0], [65504, 65504])


def test_a_vector_too_small_for_a_scale_is_zero():
    x = np.full((2, 32), -448 * LEAST / 2, np.float32)
    x[1] *= np.float32(1.001)
    codes, scales = fp8.encode(x)
    assert np.array_equal(scales[:, 0], [0, LEAST])
    assert not codes[0].any()
    assert (codes[1] == 0xF6).all()  # -224


def test_keys_are_turned_and_values_are_not():
    x = np.random.default_rng(0).normal(0, 1, (2, 64)).astype(np.float32)
    assert np.array_equal(fp8.encode_key(x).codes, fp8.encode(hadamard(x)).codes)
    assert np.array_equal(fp8.encode_value(x).codes, fp8.encode(x).codes)
