"""bf16: keys rounded as torch rounds them, values finite besides."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo.formats import bf16

ROWS = npst.arrays(np.float32, (2, 16), elements=st.floats(width=32))
ODD = np.array([[np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -0.0] * 2], np.float32)


def by_torch(x):
    return torch.from_numpy(x.copy()).to(torch.bfloat16).view(torch.uint16).numpy()


@given(x=ROWS)
def test_keys_are_rounded_as_torch_does(x):
    codes, scales = bf16.encode_key(x)
    number = ~np.isnan(x)
    assert np.array_equal(codes[number], by_torch(x)[number])
    assert np.isnan(bf16.decode(codes, scales)[~number]).all()


def test_ties_go_to_the_even_code():
    ties = np.arange(0x3F80, 0x3FC0, dtype=np.uint32) << 16 | 0x8000
    codes, _ = bf16.encode(ties.view(np.float32).reshape(1, -1))
    assert np.array_equal(codes & 1, np.zeros_like(codes))
    assert np.array_equal(codes, by_torch(ties.view(np.float32).reshape(1, -1)))


@given(x=ROWS)
def test_what_was_stored_is_stored_again_as_it_is(x):
    codes, scales = bf16.encode_value(x)
    again, _ = bf16.encode_value(bf16.decode(codes, scales))
    assert np.array_equal(again, codes)


def test_a_key_that_is_not_finite_stays_so():
    keys = bf16.decode(*bf16.encode_key(ODD))[0]
    assert np.isnan(keys[:2]).all()
    assert np.array_equal(keys[2:6], [np.inf, -np.inf, np.inf, -np.inf])  # 3.4e38 rounds up to infinity
    assert np.array_equal(np.signbit(keys[6:8]), [False, True])


def test_a_value_is_at_most_the_largest_bfloat16_and_nan_becomes_the_least():
    values = bf16.decode(*bf16.encode_value(ODD))[0]
    most = torch.finfo(torch.bfloat16).max
    assert np.array_equal(values[:6], np.array([-most, -most, most, -most, most, -most], np.float32))
