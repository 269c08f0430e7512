"""Figures of rows of logits are those of torch in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from octavo.evaluate.metrics import Reference, Rows, log_sums

VOCAB = 5000


def random_logits(rows: int, scale: float, seed: int) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((rows, VOCAB))).astype(np.float32)


def log_softmax(logits: np.ndarray) -> torch.Tensor:
    return torch.log_softmax(torch.from_numpy(logits).double(), -1)


@pytest.mark.parametrize("scale", [0.01, 3.0, 200.0])
@pytest.mark.parametrize("change", [1e-6, 0.01, 1.0])
def test_rows_are_those_of_torch_on_random_logits(scale: float, change: float) -> None:
    bf16 = random_logits(20, scale, 0)
    other = bf16 + random_logits(20, scale * change, 1)
    targets = np.random.default_rng(2).integers(0, VOCAB, 20).astype(np.int32)
    rows = Reference(bf16).compare(other, targets)
    p, q = log_softmax(bf16), log_softmax(other)
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    np.testing.assert_allclose(rows.nll, -q[range(20), targets].numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(rows.kl, kl.numpy(), rtol=1e-9, atol=1e-12)
    assert rows.agrees.tolist() == (p.argmax(-1) == q.argmax(-1)).tolist()


def test_the_same_logits_diverge_by_exactly_nothing() -> None:
    logits = random_logits(8, 5.0, 3)
    rows = Reference(logits).compare(logits.copy(), np.zeros(8, np.int32))
    assert rows.kl.tolist() == [0.0] * 8
    assert rows.agrees.all()


def test_divergence_is_from_bf16_and_not_to_it() -> None:
    """KL(P || Q) of P = (1/2, 1/2) and Q = (3/4, 1/4) is ln 2 - ln 3 / 2; the other way round it would be 0.1308."""
    p, q = np.zeros((1, 2), np.float32), np.log(np.array([[0.75, 0.25]], np.float32))
    [kl] = Reference(p).compare(q, np.zeros(1, np.int32)).kl
    assert kl == pytest.approx(math.log(2) - math.log(3) / 2, rel=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_predicts_nothing(wrong: float) -> None:
    bf16, broken = random_logits(2, 1.0, 4), random_logits(2, 1.0, 5)
    broken[1, 7] = wrong
    rows = Reference(bf16).compare(broken, np.zeros(2, np.int32))
    assert math.isfinite(rows.nll[0]) and math.isfinite(rows.kl[0])
    assert (rows.nll[1], rows.kl[1], bool(rows.agrees[1])) == (math.inf, math.inf, False)
    assert rows.perplexity == math.inf
    assert np.isnan(log_sums(broken)[1])


def test_perplexity_is_the_exponential_of_the_mean_over_all_parts() -> None:
    parts = [
        Rows(np.log([2.0]), np.zeros(1), np.ones(1, bool)),
        Rows(np.log([8.0, 4.0]), np.zeros(2), np.ones(2, bool)),
    ]
    assert Rows.join(parts).perplexity == pytest.approx(4)
