"""Ratios, floors and tables of benchmarks.serve, from measurements made up here."""

from __future__ import annotations

import pytest
from benchmarks.serving.answer import Answer
from benchmarks.serving.chat import ChatRound
from benchmarks.serving.overhead import Pair
from benchmarks.serving.report import best_peer, chat_table, overhead_table


def answer(first: float) -> Answer:
    return Answer("", 64, first, first + 1, num_prompt_tokens=100, num_cached_tokens=90, num_tokens=64)


def chat(seconds: float, *firsts: float) -> ChatRound:
    return ChatRound([answer(first) for first in firsts], seconds, client_seconds=seconds / 50)


def test_a_round_has_rates_and_times_to_the_first_token() -> None:
    measured = chat(4.0, *(0.1 * number for number in range(1, 22)))
    assert measured.requests_per_second == 21 / 4
    assert measured.tokens_per_second == 21 * 64 / 4
    assert measured.median_first == pytest.approx(1.1)
    assert measured.p95_first == pytest.approx(2.0)
    assert (measured.num_prompt_tokens, measured.cached_share) == (2100, 0.9)


def test_the_best_peer_is_the_one_nearest_to_octavo_round_by_round() -> None:
    rounds = {
        "Octavo": [chat(1, 0.1), chat(2, 0.2), chat(4, 0.4)],
        "slow": [chat(4, 0.9), chat(8, 0.9), chat(16, 1.0)],
        "near": [chat(2, 0.4), None, chat(10, 1.2)],
    }
    best = best_peer(rounds, "Octavo", lambda each: each.requests_per_second)
    assert best == ("near", pytest.approx(0.45))


def test_the_chat_table_says_whether_the_floors_hold() -> None:
    rounds = {
        "Octavo": [chat(10, 0.1, 0.1)],
        "near": [chat(20, 0.25, 0.25)],
        "far": [chat(30, 0.9, 0.9)],
        "broken": [None],
    }
    table = chat_table(rounds, "Octavo")
    assert "| near | 0.10 | 6 | 250 ms | 250 ms | 200 | 90% | 2.0% |" in table
    assert "| broken | – |" in table
    assert "| requests per second | 2.00 x near | 2.0 x | yes |" in table
    assert "| median time to first token | 0.40 x near | 0.5 x | yes |" in table


def test_floors_that_do_not_hold_are_said_so() -> None:
    table = chat_table({"Octavo": [chat(10, 0.2, 0.2)], "near": [chat(19, 0.3, 0.3)]}, "Octavo")
    assert table.count("**no**") == 2


def test_octavo_alone_has_no_verdict() -> None:
    assert "No peer was measured." in chat_table({"Octavo": [chat(10, 0.1, 0.1)], "broken": [None]}, "Octavo")


def test_the_overhead_is_that_of_the_median_pair() -> None:
    streams = [Pair(2.0, 2.1, 0.1), Pair(1.0, 1.3, 0.1), Pair(4.0, 4.0, 0.1)]
    firsts = [Pair(0.020, 0.024), Pair(0.040, 0.046), Pair(0.030, 0.032)]
    table = overhead_table(streams, firsts)
    assert "| 16 streams x 128 tokens | 1,024 tok/s | 975 tok/s | +5.0% time | 10% | yes |" in table
    assert "| first token of a cached prompt | 30.0 ms | 32.0 ms | +4.0 ms | 10 ms | yes |" in table
    assert "for 4.8% of the time" in table


def test_too_much_overhead_is_said_so() -> None:
    assert overhead_table([Pair(1.0, 1.11, 0.1)], [Pair(0.01, 0.021)]).count("**no**") == 2
