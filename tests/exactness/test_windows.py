"""Promise 1 where layers have a window, and only the blocks that it still needs are in memory.

A prompt is longer than every window, so that blocks have been given back before it is computed.
"""

from __future__ import annotations

import pytest
from exactness_lab import Ask, Lab, Run, small_lab

from octavo import _native
from octavo.kv.windows import blocks_held

CASES = [
    ("windowed", "bf16"),
    ("hybrid", "bf16"),
    ("soft-capped, two rotary bases", "bf16"),
    ("windowed", "int8"),
    ("hybrid", "fp8"),
    ("biased, one layer unrotated", "int4"),
    ("biased, one layer unrotated", "int4-full"),
]


@pytest.fixture(params=CASES, ids=", ".join)
def lab(request: pytest.FixtureRequest) -> Lab:
    shape, kv_dtype = request.param
    return small_lab(shape, _native.supported_isas()[0], kv_dtype)


def held_at_most(lab: Lab, num_tokens: int, step: int) -> int:
    """The most blocks that one sequence holds in all groups."""
    windows = lab.spec.group_windows
    return sum(blocks_held(num_tokens, window, block_size=16, max_step_tokens=step) for window in windows)


def most_held(run: Run, *asks: Ask) -> int:
    """Run ``asks`` and return how many blocks were held at most between two steps."""
    for ask in asks:
        run.add(ask)
    most = 0
    while run.engine.has_unfinished:
        run.step()
        most = max(most, run.engine.kv.num_referenced_blocks)
    run.engine.check_idle()
    return most


@pytest.mark.parametrize("budget", [7, 16, 50, 512])
def test_whole_chunked_and_continued_equal_attention_over_all_blocks_with_a_mask(lab: Lab, budget: int) -> None:
    whole = Ask(1, lab.prompt(150), 40)
    masked = lab.start(threads=1, keep_passed=True, num_blocks=64, max_num_batched_tokens=512).ask(whole)
    run = lab.start(num_blocks=64, max_num_batched_tokens=budget).ask(whole)
    assert run.runner.rows == masked.runner.rows
    told = whole.prompt + tuple(run.tokens[1, 0])
    continued = Ask(2, told + lab.prompt(20, seed=3), 5)
    assert run.ask(continued).rows_of(2) == masked.ask(continued).rows_of(2)
    assert run.cached[2] == masked.cached[2] == 189  # all but the token drawn last
    lab.assert_exact(run, whole, continued)


def test_hit_on_the_last_window_alone_equals_miss(lab: Lab) -> None:
    """What the windows have passed is evicted; all that is left there is what the next query sees."""
    first = Ask(1, lab.prompt(160), 1)
    run = lab.start(num_blocks=100).ask(first)
    index, pool = run.engine.kv._index, run.engine.kv._pool
    chunks = [first.prompt[16 * i : 16 * i + 16] for i in range(10)]
    for group, window in enumerate(lab.spec.group_windows):
        for block in list(index._blocks[group].values()):
            if window is not None and chunks.index(block.token_ids) < (160 - window + 1) // 16:
                index.remove(block)
                pool.num_evictable -= 1
    again = Ask(2, first.prompt + lab.prompt(30, seed=2))
    run.ask(again)
    assert run.cached[2] == 160
    shorter = Ask(3, first.prompt[:130])
    assert run.ask(shorter).cached[3] == 0, "its windows' blocks were to be gone"
    lab.assert_exact(run, first, again, shorter)


def test_before_and_after_preemption(lab: Lab) -> None:
    """The older request grows, until there is no room for the younger one, which is past its windows."""
    older, younger = Ask(1, lab.prompt(5), 120), Ask(2, lab.prompt(130, seed=2), 70)
    blocks = 1 + held_at_most(lab, 200, 24) + len(lab.spec.kv_groups)
    run = lab.start(num_blocks=blocks, max_num_batched_tokens=24).ask(older, younger)
    assert run.engine.stats.num_preemptions > 0
    lab.assert_exact(run, older, younger)


def test_without_any_cache_at_every_step(lab: Lab) -> None:
    ask, company = Ask(1, lab.prompt(90), 6, use_cache=False), Ask(2, lab.prompt(60), 20)
    run = lab.start(max_num_batched_tokens=33).ask(ask, company)
    lab.assert_exact(run, ask, company)


def test_choices_share_the_prompt_and_copy_on_write(lab: Lab) -> None:
    ask = Ask(1, lab.prompt(105), 25, n=3)
    lab.assert_exact(lab.start().ask(ask), ask)


def test_many_that_share_prefixes_of_every_length(lab: Lab) -> None:
    text = lab.prompt(170)
    asks = [Ask(seed, text[: 20 * seed] + lab.prompt(9, seed=seed)) for seed in range(1, 9)]
    run = lab.start(num_blocks=2 + 2 * held_at_most(lab, 180, 40), max_num_batched_tokens=40)
    for ask in asks:
        run.ask(ask)
    run.ask(*(Ask(10 + ask.seed, ask.prompt) for ask in reversed(asks)))
    lab.assert_exact(run, *asks, *(Ask(10 + ask.seed, ask.prompt) for ask in asks))


def test_a_long_sequence_holds_no_more_than_its_windows_need(lab: Lab) -> None:
    """Between steps; and the pool has not one block more than the plan says that the request takes."""
    ask = Ask(1, lab.prompt(500), 60)
    run = lab.start(num_blocks=1 + held_at_most(lab, 560, 32), max_num_batched_tokens=32)
    assert most_held(run, ask) <= held_at_most(lab, 560, 1)
    assert run.engine.stats.num_preemptions == 0
    lab.assert_exact(run, ask)


def test_a_model_of_windows_alone_is_not_bounded_by_the_pool() -> None:
    lab = small_lab("windowed", _native.supported_isas()[0])
    ask = Ask(1, lab.prompt(1200), 40)
    run = lab.start(num_blocks=9, max_num_batched_tokens=64)
    assert run.engine.plan.max_model_len == lab.spec.max_position_embeddings
    assert most_held(run, ask) <= 8
    lab.assert_exact(run, ask)
