"""int4: groups of 32 from their minimum to their maximum in 15 steps; keys are turned first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo.formats import int4
from octavo.formats.hadamard import hadamard

LEAST_NORMAL, LEAST = 2.0**-14, 2.0**-24
ROWS = npst.arrays(np.float32, (2, 64), elements=st.floats(-65504, 65504, width=32))


def groups_of(x):
    """``x`` in groups, with the scale and the minimum of each, ``[n, groups, 1]`` float64."""
    codes, scales = int4.encode(x)
    pairs = scales.astype(np.float64).reshape(len(x), -1, 2)
    return codes.reshape(len(x), -1, 32), x.reshape(len(x), -1, 32), pairs[..., :1], pairs[..., 1:]


@given(x=ROWS)
def test_an_element_is_off_by_half_a_step_at_most_beside_what_float16_costs(x):
    """The minimum is known to 11 bits of itself, the step to 11 bits: both may cut an end of the range off."""
    codes, groups, scale, minimum = groups_of(x)
    low, high = (end.astype(np.float64) for end in (groups.min(2, keepdims=True), groups.max(2, keepdims=True)))
    off = np.abs(int4.decode(*int4.encode(x)).reshape(groups.shape) - groups.astype(np.float64))
    cut = np.maximum(np.maximum(minimum - low, high - (minimum + 15 * scale)), 0)
    rounding = 2.0**-20 * (high - low) + 2.0**-22 * np.abs(minimum)
    assert np.all(off <= np.maximum(scale / 2, cut) + rounding)
    assert np.all(np.abs(minimum - low) <= np.maximum(np.abs(low) * 2.0**-11, LEAST / 2))
    assert np.all(np.abs(scale - (high - low) / 15) <= np.maximum(scale * 2.0**-10.99, LEAST / 2))
    assert codes.max() <= 15


@given(x=ROWS)
def test_what_was_stored_is_stored_again_as_it_is_where_the_minimum_is_finer_than_the_steps(x):
    x = np.clip(x, -60000, 60000)  # what a scale rounded up leads to is not cut off at float16's largest
    codes, groups, scale, _ = groups_of(x)
    assume(np.all(scale >= LEAST_NORMAL))
    assume(np.all(np.abs(groups.min(2, keepdims=True)) * 2.0**-11 < scale / 4))
    stored = int4.encode(x)
    again = int4.encode(int4.decode(*stored))
    assert (codes.min(2) == 0).all()
    assert (codes.max(2) == 15).all()
    assert np.array_equal(again.codes, stored.codes)
    assert np.array_equal(again.scales, stored.scales)


@pytest.mark.parametrize("number", [0.0, 1.0, -3.25, 1e-3, 1000.3, -65504.0])
def test_a_constant_vector_is_its_minimum(number):
    x = np.full((1, 64), number, np.float32)
    codes, scales = int4.encode(x)
    assert not codes.any()
    assert np.array_equal(scales[0], np.array([0, number] * 2, np.float16))
    assert np.array_equal(int4.decode(codes, scales), np.full((1, 64), np.float16(number), np.float32))


def test_ties_go_to_the_even_code():
    x = np.full((1, 32), 15, np.float32)  # from 0 to 15 in steps of exactly 1
    x[0, :6] = [0, 0.5, 1.5, 2.5, 13.5, 14.5]
    codes, scales = int4.encode(x)
    assert np.array_equal(scales[0], [1, 0])
    assert np.array_equal(codes[0, :7], [0, 0, 2, 2, 14, 14, 15])


def test_groups_do_not_know_each_other():
    x = np.linspace(-1, 1, 96, dtype=np.float32).reshape(1, 96)
    alone = [int4.encode(x[:, start : start + 32]) for start in (0, 32, 64)]
    codes, scales = int4.encode(x)
    assert np.array_equal(codes, np.concatenate([a.codes for a in alone], 1))
    assert np.array_equal(scales, np.concatenate([a.scales for a in alone], 1))


def test_a_zero_has_no_sign():
    """Which of two zeros is the least depends on the order of comparison, which no kernel promises."""
    x = np.zeros((3, 32), np.float32)
    x[1, 1::2] = -0.0
    x[2] = -0.0
    codes, scales = int4.encode(x)
    assert not codes.any()
    assert not scales.view(np.uint16).any()


def test_nan_counts_as_zero_and_infinities_as_the_largest_float16():
    x = np.zeros((3, 32), np.float32)
    x[0, :3] = [np.inf, -np.inf, np.nan]
    x[1, :3] = [1e30, -1e38, 0]
    x[2, :3] = [65504, -65504, 0]
    codes, scales = int4.encode(x)
    assert np.array_equal(codes[0], codes[2])
    assert np.array_equal(codes[1], codes[2])
    assert np.array_equal(codes[2, :3], [15, 0, 7])  # 0 is 7.498 steps of 8736 up
    assert np.array_equal(scales[:, 1], [-65504] * 3)
    assert np.array_equal(scales[:, 0], [np.float16(131008 / 15)] * 3)


def test_a_group_too_narrow_for_a_scale_is_its_minimum():
    x = np.zeros((2, 32), np.float32)
    x[0, 0] = 15 * LEAST / 2  # a tie between 0 and the least float16
    x[1, 0] = 15 * LEAST * 0.51
    codes, scales = int4.encode(x)
    assert np.array_equal(scales[:, 0], [0, LEAST])
    assert not codes[0].any()
    assert codes[1, 0] == 8


def squared_error(groups, written):
    return np.square(int4.decode(*written).reshape(groups.shape) - groups).sum(2)


def test_keys_are_turned_and_their_ranges_chosen_values_are_written_as_they_are():
    x = np.random.default_rng(0).normal(0, 1, (300, 64)).astype(np.float32)
    groups = hadamard(x).reshape(300, 2, 32)
    chosen, whole = squared_error(groups, int4.encode_key(x)), squared_error(groups, int4.encode(hadamard(x)))
    assert chosen.sum() < 0.9 * whole.sum()
    assert np.array_equal(int4.encode_value(x).codes, int4.encode(x).codes)


def test_the_range_of_a_key_is_the_best_of_nine():
    x = np.random.default_rng(2).normal(0, 1, (50, 32)).astype(np.float32)
    turned = hadamard(x)
    low, high = turned.min(1), turned.max(1)
    errors = []
    for lower in int4.CUTS:
        for upper in int4.CUTS:
            minimum = (low + lower * (high - low)).astype(np.float16).astype(np.float64)
            scale = ((high - upper * (high - low) - minimum) / 15).astype(np.float16).astype(np.float64)
            codes = np.clip(np.rint((turned - minimum[:, None]) / scale[:, None]), 0, 15)
            errors.append(np.square(codes * scale[:, None] + minimum[:, None] - turned).sum(1))
    found = squared_error(turned[:, None], int4.encode_key(x))[:, 0]
    assert np.allclose(found, np.min(errors, axis=0), rtol=1e-4)


def test_an_infinity_in_a_key_reaches_what_it_is_mixed_with():
    x = np.ones((1, 96), np.float32)  # turned in three blocks of 32
    x[0, 40] = np.inf
    codes, scales = int4.encode_key(x)
    back = int4.decode(codes, scales)[0]
    assert np.abs(back[32:64]).min() >= 65504
    assert np.abs(back[:32]).max() < 6
    assert np.abs(back[64:]).max() < 6


def test_turning_spares_keys_what_one_large_element_costs():
    """The reason it is there. One element 50 times the others: its group loses them, unless they share it."""
    x = np.random.default_rng(1).normal(0, 1, (200, 64)).astype(np.float32)
    x[:, 17] = 50
    plain = int4.decode(*int4.encode(x)) - x
    turned = hadamard(int4.decode(*int4.encode_key(x))) - x
    assert np.square(turned).mean() < 0.6 * np.square(plain).mean()
