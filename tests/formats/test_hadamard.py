"""The Hadamard transform: orthonormal, its own inverse, and it leaves scores as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo.formats.hadamard import hadamard

HEAD_DIMS = {16: 16, 32: 32, 48: 16, 64: 64, 80: 16, 96: 32, 128: 128, 160: 32, 256: 256}
"""The size of the blocks for each head_dim."""


def sylvester(size):
    """H of 2n is H of n, twice side by side, and below with the second one negated."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    return matrix


@pytest.mark.parametrize(("head_dim", "size"), HEAD_DIMS.items())
def test_it_multiplies_each_block_by_the_sylvester_matrix_over_the_root_of_its_size(head_dim, size):
    wanted = np.kron(np.eye(head_dim // size), sylvester(size)) / np.sqrt(size)
    turned = hadamard(np.eye(head_dim, dtype=np.float32))
    assert np.array_equal(turned, wanted.astype(np.float32))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@given(seed=st.integers(0, 2**32 - 1))
def test_lengths_and_dot_products_stay(head_dim, seed):
    q, k = np.random.default_rng(seed).normal(0, 1, (2, 8, head_dim)).astype(np.float32)
    assert np.allclose(hadamard(q) @ hadamard(k).T, q @ k.T, atol=1e-5 * head_dim)
    assert np.allclose(np.linalg.norm(hadamard(k), axis=1), np.linalg.norm(k, axis=1), rtol=1e-6)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@given(seed=st.integers(0, 2**32 - 1))
def test_turning_twice_gives_the_vector_back(head_dim, seed):
    x = np.random.default_rng(seed).normal(0, 1, (8, head_dim)).astype(np.float32)
    assert np.allclose(hadamard(hadamard(x)), x, atol=1e-5)


@given(x=npst.arrays(np.float32, (2, 32), elements=st.floats(-1000, 1000, width=32)))
def test_the_order_of_the_sums_is_strides_of_1_2_4_and_on_and_then_one_product(x):
    """Written out once more, element by element: what the native core computes."""
    turned = x.copy()
    for stride in (1, 2, 4, 8, 16):
        for i in range(32):
            if not i & stride:
                a, b = turned[:, i].copy(), turned[:, i + stride].copy()
                turned[:, i], turned[:, i + stride] = a + b, a - b
    turned = turned * np.float32(1 / np.sqrt(32))
    assert np.array_equal(hadamard(x).view(np.uint32), turned.view(np.uint32))


def test_it_leaves_what_it_is_given():
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    before = x.copy()
    hadamard(x)
    assert np.array_equal(x, before)


def test_what_is_not_finite_stays_within_its_block():
    x = np.ones((3, 96), np.float32)
    x[0, 0], x[1, 33], x[2, 95] = np.nan, np.inf, 3e38
    x[2, 94] = 3e38  # their sum is beyond float32
    finite = np.isfinite(hadamard(x)).reshape(3, 3, 32)
    assert np.array_equal(finite.any(axis=2), [[False, True, True], [True, False, True], [True, True, True]])
    assert np.array_equal(finite.all(axis=2), [[False, True, True], [True, False, True], [True, True, False]])
