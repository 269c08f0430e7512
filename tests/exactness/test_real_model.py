"""Promise 1 on the embedded model: the real sizes, the best instruction set this machine has."""

from __future__ import annotations

import pytest
from exactness_lab import Ask, Lab


@pytest.fixture(scope="module")
def told(real_lab: Lab) -> Ask:
    return Ask(1, real_lab.prompt(300), 24)


def test_hit_equals_miss(real_lab: Lab, told: Ask) -> None:
    again = Ask(2, told.prompt, told.max_tokens)
    run = real_lab.start().ask(told).ask(again)
    assert run.cached[2] == 299
    real_lab.assert_exact(run, told, again)


def test_a_hit_that_ends_inside_a_block_equals_miss(real_lab: Lab, told: Ask) -> None:
    other = Ask(2, told.prompt[:150] + real_lab.prompt(20, seed=2), 12)
    run = real_lab.start().ask(told).ask(other)
    assert run.cached[2] == 150
    real_lab.assert_exact(run, other)


@pytest.mark.parametrize("budget", [50, 128])
def test_any_chunking_of_prefill(real_lab: Lab, told: Ask, budget: int) -> None:
    real_lab.assert_exact(real_lab.start(max_num_batched_tokens=budget).ask(told), told)


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads(real_lab: Lab, told: Ask, threads: int) -> None:
    real_lab.assert_exact(real_lab.start(threads=threads).ask(told), told)


def test_any_company_preempted_and_evicted(real_lab: Lab, told: Ask) -> None:
    crowd = [Ask(seed, real_lab.prompt(60 * seed, seed=seed), 20) for seed in range(2, 6)]
    run = real_lab.start(num_blocks=32, max_num_batched_tokens=100).ask(*crowd, told)
    again = Ask(9, told.prompt, told.max_tokens)
    run.ask(again)
    real_lab.assert_exact(run, told, *crowd, again)


def test_preemption(real_lab: Lab) -> None:
    asks = [Ask(seed, real_lab.prompt(90, seed=seed), 60) for seed in (1, 2, 3)]
    run = real_lab.start(num_blocks=21).ask(*asks)
    assert run.engine.stats.num_preemptions > 0
    real_lab.assert_exact(run, *asks)


def test_blocks_written_by_decode_equal_those_written_by_prefill(real_lab: Lab) -> None:
    told = Ask(1, real_lab.prompt(40), 60)
    run = real_lab.start().ask(told)
    reread = Ask(2, told.prompt + tuple(run.tokens[1, 0][:59]), 1)
    run.ask(reread)
    assert run.cached[2] >= 96
    assert run.logits(2, 0).tobytes() == run.logits(1, 59).tobytes()
    real_lab.assert_exact(run, told, reread)


def test_without_any_cache_at_every_step(real_lab: Lab) -> None:
    ask = Ask(1, real_lab.prompt(60), 12, use_cache=False)
    real_lab.assert_exact(real_lab.start().ask(ask), ask)
