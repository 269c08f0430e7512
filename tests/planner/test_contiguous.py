"""KV memory without paging, simulated: who runs, what is reserved, and what of it is real."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import CapacityError
from octavo.planner.contiguous import (
    Held,
    Lengths,
    reserve_exactly,
    reserve_most,
    reserve_power_of_two,
    simulate,
)

LONGEST = 32
LOADS = st.lists(
    st.integers(1, LONGEST - 1).flatmap(
        lambda prompt: st.builds(Lengths, st.just(prompt), st.integers(1, LONGEST - prompt))
    ),
    min_size=1,
    max_size=12,
)
RESERVATIONS = st.sampled_from([reserve_most(LONGEST), reserve_power_of_two(LONGEST), reserve_exactly])


def test_one_sequence_holds_its_reservation_from_its_first_step_to_its_last():
    # 3 prompt tokens, 4 of output: a step of 3, then steps of 1; the last token drawn is not computed.
    steps = simulate([Lengths(3, 4)], reserve_most(10), memory_tokens=10, max_num_batched_tokens=8)
    assert steps == [
        Held(1, 0, num_tokens=3, num_later=3, num_unused=4),
        Held(1, 0, num_tokens=4, num_later=2, num_unused=4),
        Held(1, 0, num_tokens=5, num_later=1, num_unused=4),
        Held(0, 0, 0, 0, 0),
    ]


def test_as_many_run_as_have_room_for_the_longest_context():
    load = [Lengths(2, 3)] * 3
    steps = simulate(load, reserve_most(10), memory_tokens=29, max_num_batched_tokens=64)
    assert [(held.num_running, held.num_waiting) for held in steps] == [(2, 1), (2, 1), (0, 1), (1, 0), (1, 0), (0, 0)]
    assert steps[0].num_reserved == 20


def test_a_long_prompt_is_computed_in_chunks_beside_decodes():
    # Budget 4. Step 1: both tokens of the first and 2 of the second. Step 2: a decode, then 3 more; and so on.
    steps = simulate([Lengths(2, 9), Lengths(9, 1)], reserve_exactly, memory_tokens=50, max_num_batched_tokens=4)
    assert [held.num_tokens for held in steps[:4]] == [4, 8, 12, 5]
    assert [held.num_running for held in steps[:4]] == [2, 2, 2, 1]


def test_a_short_request_does_not_overtake_one_that_has_no_room():
    load = [Lengths(4, 4), Lengths(6, 4), Lengths(1, 1)]
    steps = simulate(load, reserve_exactly, memory_tokens=16, max_num_batched_tokens=64)
    assert [held.num_waiting for held in steps[:5]] == [2, 2, 2, 2, 0]


@pytest.mark.parametrize(("tokens", "reserved"), [(2, 2), (3, 4), (16, 16), (17, 32), (33, 40)])
def test_a_power_of_two_is_reserved_and_never_more_than_the_longest(tokens, reserved):
    assert reserve_power_of_two(40)(Lengths(1, tokens - 1)) == reserved


def test_an_empty_load_takes_no_step():
    assert simulate([], reserve_most(10), memory_tokens=1, max_num_batched_tokens=1) == []


def test_memory_for_less_than_one_reservation_is_refused_with_both_sizes():
    with pytest.raises(CapacityError, match=r"2,047 tokens.*2,048 tokens.*raise kv_memory or lower max_model_len"):
        simulate([Lengths(1, 1)], reserve_most(2048), memory_tokens=2047, max_num_batched_tokens=8)


@given(load=LOADS, reserve=RESERVATIONS, memory=st.integers(LONGEST, 4 * LONGEST), budget=st.integers(1, 40))
def test_never_more_is_reserved_than_there_is_and_every_request_finishes(load, reserve, memory, budget):
    steps = simulate(load, reserve, memory_tokens=memory, max_num_batched_tokens=budget)
    for held in steps:
        assert held.num_reserved <= memory
        assert min(held.num_tokens, held.num_later, held.num_unused) >= 0
        assert held.num_running <= budget
    assert steps[-1] == Held(0, 0, 0, 0, 0)
    assert all(after.num_waiting <= before.num_waiting for before, after in pairwise(steps))


@given(load=LOADS, reserve=RESERVATIONS, memory=st.integers(LONGEST, 4 * LONGEST), budget=st.integers(1, 40))
def test_every_token_is_computed_once_and_none_is_lost(load, reserve, memory, budget):
    def missing(held: Held) -> int:
        """Tokens that are still to be computed: of those that run, and of those that wait, which are the last ones."""
        return held.num_later + sum(request.most_held for request in load[len(load) - held.num_waiting :])

    steps = [Held(0, len(load), 0, 0, 0), *simulate(load, reserve, memory_tokens=memory, max_num_batched_tokens=budget)]
    computed = [missing(before) - missing(after) for before, after in pairwise(steps)]
    assert all(0 < count <= budget for count in computed)
    assert sum(computed) == sum(request.most_held for request in load)


@given(load=LOADS, memory=st.integers(LONGEST, 4 * LONGEST), budget=st.integers(1, 40))
def test_whole_reservations_run_as_an_engine_with_so_many_seats(load, memory, budget):
    steps = simulate(load, reserve_most(LONGEST), memory_tokens=memory, max_num_batched_tokens=budget)
    assert max(held.num_running for held in steps) <= memory // LONGEST
    assert all(held.num_reserved == held.num_running * LONGEST for held in steps)
