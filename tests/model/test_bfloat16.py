import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from octavo.model import bfloat16
from octavo.model.bfloat16 import to_bfloat16


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


words = arrays(np.uint32, st.integers(1, 64), elements=st.integers(0, 2**32 - 1))
# Words whose lower half is at, just under or just over the middle: where rounding decides.
ties = arrays(
    np.uint32,
    64,
    elements=st.builds(
        lambda upper, lower: upper << 16 | lower,
        st.integers(0, 2**16 - 1),
        st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]),
    ),
)


def torch_bits(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


@given(st.one_of(words, ties))
def test_float32_rounds_as_torch_does_and_nan_stays_nan(word):
    values = word.view(np.float32)
    bits, nan = to_bfloat16(values), np.isnan(values)
    np.testing.assert_array_equal(bits[~nan], torch_bits(values)[~nan])
    assert np.isnan(from_bfloat16(bits[nan])).all()


def test_every_float16_rounds_as_torch_does():
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(to_bfloat16(values)[finite], torch_bits(values)[finite])
    assert np.isnan(from_bfloat16(to_bfloat16(values)[~finite])).all()


def test_every_bfloat16_survives_the_way_through_float32():
    bits = np.arange(2**16, dtype=np.uint16)
    values = from_bfloat16(bits)
    keep = ~np.isnan(values)
    np.testing.assert_array_equal(to_bfloat16(values)[keep], bits[keep])


def test_chunks_leave_no_seam(monkeypatch):
    values = np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32)
    whole = to_bfloat16(values)
    monkeypatch.setattr(bfloat16, "_CHUNK", 3)
    np.testing.assert_array_equal(to_bfloat16(values), whole)
    assert whole.shape == (7, 11)
