"""A value that overflows is its request's own trouble: nobody else, at the same time or later, computes another bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exactness_lab import SHAPES, Ask, Lab, random_weights

from octavo import _native
from octavo.model.weights import empty_model

LOUD = 7
"""The one token whose first dimension is not zero; the first layer makes infinity of it."""


@pytest.fixture(scope="module", params=["mha", "gqa", "windowed", "mqa"])
def loud_lab(request: pytest.FixtureRequest) -> Lab:
    spec = replace(SHAPES[request.param], layers=SHAPES[request.param].layers[:1] * 3)

    def model(threads: int) -> _native.Model:
        made = empty_model(spec, _native.supported_isas()[0], threads)
        for slot, layer, bits in random_weights(spec):
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            if slot in ("embed", "lm_head"):
                values[:, 0] = 0
                values[LOUD] = 0
                values[LOUD, 0] = slot == "embed"
            elif slot in ("o", "down"):
                values[0] = 0
            elif slot in ("gate", "up") and layer == 0:
                values[:, 0] = 3e38
            made.set_tensor(slot, layer, (values.view(np.uint32) >> 16).astype(np.uint16))
        return made

    return Lab(spec, model, digest=b"loud")


def test_it_leaves_nothing_in_the_rows_that_later_passes_use(loud_lab: Lab) -> None:
    run = loud_lab.start().ask(Ask(1, (LOUD,) * 20, 1))
    assert not np.isfinite(run.logits(1)).all(), "it was to overflow"
    after = Ask(2, tuple(range(20, 60)))
    loud_lab.assert_exact(run.ask(after), after)


@pytest.mark.parametrize("shared", range(28, 36))
def test_it_does_not_reach_the_tokens_before_it_that_others_share(loud_lab: Lab, shared: int) -> None:
    prefix = tuple(range(20, 20 + shared))
    run = loud_lab.start().ask(Ask(1, (*prefix, LOUD, LOUD), 1))
    after = Ask(2, (*prefix, 60, 61))
    run.ask(after)
    assert run.cached[2] == shared // 16 * 16 or run.cached[2] == shared
    loud_lab.assert_exact(run, after)


def test_it_does_not_reach_the_rest_of_the_batch(loud_lab: Lab) -> None:
    asks = [Ask(seed, tuple(range(10 * seed, 10 * seed + 30))) for seed in (2, 3)]
    run = loud_lab.start().ask(Ask(1, (LOUD,) * 9, 1), *asks)
    loud_lab.assert_exact(run, *asks)
