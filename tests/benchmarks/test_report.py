"""Ratios, floors and tables of benchmarks.compare, from measurements made up here."""

from __future__ import annotations

import pytest
from benchmarks.peers.shapes import SHAPES, Shape, Timing
from benchmarks.report import FLOORS, Row, tables

from octavo.cli.bench.roofline import Roof, Work

BY_NAME = {shape.name: shape for shape in SHAPES}
ROOF = Roof(bytes_per_second=50e9, operations_per_second=500e9)


def row(shape: str, octavo: list[float], share: float = 1.0, **peers: list[float | None]) -> Row:
    """``share``: of the roof that the median round reaches."""
    named = {name.replace("_", "."): [_timing(value) for value in seconds] for name, seconds in peers.items()}
    work = Work(bytes=share * sorted(octavo)[len(octavo) // 2] * ROOF.bytes_per_second, operations=1)
    return Row(BY_NAME[shape], [Timing(value) for value in octavo], named, [ROOF] * len(octavo), work)


def _timing(seconds: float | None) -> Timing | None:
    return None if seconds is None else Timing(seconds)


def cells(text: str, title: str) -> list[str]:
    [line] = [line for line in text.split("\n\n")[0].splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_ratio_is_the_median_of_those_within_one_round() -> None:
    measured = row("8x128", [1, 10, 2], llama_cpp=[2, 20, 8])
    assert measured.ratio("llama.cpp") == 2  # of 2, 2 and 4; the medians' own ratio would be 4


def test_a_round_that_a_peer_failed_in_does_not_count() -> None:
    assert row("8x128", [1, 1, 1], vLLM=[3, None, 5]).ratio("vLLM") == 4


def test_a_peer_that_never_answered_has_no_ratio_and_is_not_the_best() -> None:
    measured = row("8x128", [1], vLLM=[None], OpenVINO=[2])
    assert measured.ratio("vLLM") is None
    assert measured.ratio("transformers") is None
    assert measured.best_peer == "OpenVINO"


def test_the_best_peer_is_the_fastest() -> None:
    assert row("8x128", [1], llama_cpp=[4], OpenVINO=[2], vLLM=[3]).best_peer == "OpenVINO"
    assert row("8x128", [1]).best_peer is None


def test_a_floor_beside_the_best_peer_is_not_reached_by_beating_another() -> None:
    assert row("16x128", [1], llama_cpp=[2], OpenVINO=[1.4]).reached is False
    assert row("16x128", [1], llama_cpp=[2], OpenVINO=[1.6]).reached is True


def test_one_sequence_is_held_against_llama_cpp_and_against_the_roof() -> None:
    assert row("1x128", [1], share=0.81, llama_cpp=[1.31], OpenVINO=[1.2]).reached is True
    assert row("1x128", [1], share=0.79, llama_cpp=[1.31]).reached is False
    assert row("1x128", [1], share=0.81, llama_cpp=[1.29]).reached is False


def test_nothing_is_said_of_a_floor_whose_peer_was_not_measured() -> None:
    assert row("1x128", [1], OpenVINO=[9]).reached is None
    assert row("16x128", [1]).reached is None


def test_a_shape_without_a_floor_promises_nothing() -> None:
    assert row("8x128", [1], OpenVINO=[9]).reached is None


def test_every_floor_is_of_a_shape() -> None:
    assert set(FLOORS) <= set(BY_NAME)


def test_the_share_of_the_roof_is_taken_round_by_round() -> None:
    work = Work(bytes=10e9, operations=1)
    roofs = [Roof(10e9, 1e12), Roof(20e9, 1e12), Roof(40e9, 1e12)]  # 1, 0.5 and 0.25 s at least
    timings = [Timing(2), Timing(0.625), Timing(0.5)]
    assert Row(BY_NAME["1x128"], timings, {}, roofs, work).share == pytest.approx(0.5)


def test_figures_are_medians_in_tokens_per_second() -> None:
    text = tables([row("8x128", [0.01, 0.02, 0.9], llama_cpp=[0.04, 0.05, 0.03])], ["llama.cpp", "vLLM"])
    _, octavo, llama_cpp, vllm, ratio, best, _, _ = cells(text, "decode, 8 x 128")
    assert (octavo, llama_cpp, vllm) == ("**400 tok/s**", "200 tok/s", "–")
    assert (ratio, best) == ("2.50", "2.50 (llama.cpp)")


def test_a_prefill_is_in_tokens_of_the_prompt_per_second() -> None:
    text = tables([row("prefill-1024", [0.5], OpenVINO=[1.0])], ["OpenVINO"])
    assert cells(text, "prefill, 1,024")[1:3] == ["**2,048 tok/s**", "1,024 tok/s"]


def test_a_first_token_is_in_milliseconds_with_the_cold_one_beside_it() -> None:
    timings = [Timing(0.05, cold=2.0), Timing(0.04, cold=2.2), Timing(0.06, cold=2.1)]
    measured = Row(BY_NAME["ttft"], timings, {}, [ROOF] * 3, Work(1, 1))
    assert cells(tables([measured], []), "first token, 4,000 cached + 40 new")[1] == "**50 ms (2,100)**"


def test_a_missed_floor_stands_out() -> None:
    text = tables([row("16x128", [1], OpenVINO=[1.4]), row("8x1024", [1], OpenVINO=[2])], ["OpenVINO"])
    assert cells(text, "decode, 16 x 128")[-2:] == ["1.5 x best peer", "**no**"]
    assert cells(text, "decode, 8 x 1,024")[-2:] == ["1.8 x best peer", "yes"]


def test_the_roof_is_shown_with_what_must_move_and_the_share_reached() -> None:
    measured = row("1x128", [0.01], share=0.8)
    assert "| decode, 1 x 128 | 400 MB | 0.0 GFLOP | 50.0 GB/s | 500 GFLOP/s | 80% | memory |" in tables([measured], [])


def test_names_of_shapes_are_distinct() -> None:
    assert len(BY_NAME) == len(SHAPES)
    assert Shape("decode", 1, 128).num_timed_tokens == 1
