"""A histogram has what Prometheus asks for: counts of values up to each bound, their number and their sum."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.histogram import Histogram

BOUNDS = (1, 2, 5, 10)


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.integers(-3, 20))))
def test_each_bound_has_the_values_that_are_not_above_it(values: list[int]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    bounds = (*BOUNDS, float("inf"))
    assert histogram.cumulative() == [(bound, sum(value <= bound for value in values)) for bound in bounds]
    assert (histogram.count, histogram.sum) == (len(values), sum(values))


def test_a_copy_stays_as_it_was() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(3)
    copied = copy.deepcopy(histogram)
    assert copied == histogram
    histogram.observe(3)
    assert copied != histogram and (copied.count, copied.sum) == (1, 3)
