"""What is timed of an engine that answers token ids."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from benchmarks.peers import engine as engine_module
from benchmarks.peers.engine import TokenEngine, random_prompts
from benchmarks.peers.shapes import DECODE_STEPS, Shape, Timing


class Made(TokenEngine):
    """Takes a second per token of a prompt that its prefix cache lacks, and two per step, on a clock of its own."""

    version = "1"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.asked: list[tuple[list[list[int]], int]] = []
        self.cached: list[list[int]] = []

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        self.asked.append((prompts, num_tokens))
        self.now += 2 * num_tokens + sum(len(prompt) - self._num_cached(prompt) for prompt in prompts)
        self.cached += prompts
        return [[1] * num_tokens for _ in prompts]

    def _num_cached(self, prompt: list[int]) -> int:
        return max((len(old) for old in self.cached if prompt[: len(old)] == old), default=0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_decode_is_the_time_of_steps_alone(engine: Made) -> None:
    assert engine.measure(Shape("decode", 4, 100), 0).seconds == 2  # with the prefill of 400 tokens it were more
    assert [num_tokens for _, num_tokens in engine.asked] == [1, 1, DECODE_STEPS + 1]


def test_prefill_is_the_time_to_the_first_token_of_a_new_prompt(engine: Made) -> None:
    assert [engine.measure(Shape("prefill", 1, 100), seed).seconds for seed in (0, 1)] == [102, 102]


def test_a_first_token_is_timed_cold_and_then_with_new_tokens_behind_what_is_cached(engine: Made) -> None:
    assert engine.measure(Shape("ttft", 1, 200, 10), 0) == Timing(12, cold=202)
    [cold], [warm] = (prompts for prompts, _ in engine.asked)
    assert (len(cold), warm[:200], len(warm)) == (200, cold, 210)


def test_an_engine_that_stops_early_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(Made):
        def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
            return [[1]] * len(prompts)

    with pytest.raises(RuntimeError, match=f"asked for {DECODE_STEPS + 1} tokens for each of 2 prompts"):
        Lazy(monkeypatch).measure(Shape("decode", 2, 16), 0)


def test_every_engine_gets_the_same_prompts_and_no_two_share_a_beginning() -> None:
    prompts = random_prompts(32, 128, 5)
    assert prompts == random_prompts(32, 128, 5)
    assert len({prompt[0] for prompt in prompts + random_prompts(32, 128, 6)}) > 60
