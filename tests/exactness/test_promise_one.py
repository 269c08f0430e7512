"""Promise 1: logits depend on the model, the tokens and the KV format alone. Bit for bit, one circumstance a test."""

from __future__ import annotations

import pytest
from exactness_lab import Ask, Lab, small_lab
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native


def test_hit_equals_miss(lab: Lab) -> None:
    cold, warm = Ask(1, lab.prompt(75)), Ask(2, lab.prompt(75))
    run = lab.start().ask(cold).ask(warm)
    assert run.cached == {1: 0, 2: 74}
    lab.assert_exact(run, cold, warm)


def test_hit_on_a_partial_tail_equals_miss(lab: Lab) -> None:
    first = Ask(1, lab.prompt(37), max_tokens=4)
    run = lab.start().ask(first)
    # All but the last drawn token were computed: 37 + 3 tokens, 8 of them in a partial block.
    reply = tuple(run.tokens[1, 0])
    second = Ask(2, first.prompt + reply + lab.prompt(5, seed=9))
    run.ask(second)
    assert run.cached[2] == 40
    lab.assert_exact(run, second)


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_prompts_around_whole_blocks_sent_twice(lab: Lab, blocks: int, extra: int) -> None:
    length = 16 * blocks + extra
    first, second = Ask(1, lab.prompt(length), 3), Ask(2, lab.prompt(length), 3)
    run = lab.start().ask(first).ask(second)
    assert run.cached[2] == length - 1
    lab.assert_exact(run, first, second)


@pytest.mark.parametrize("common", [1, 15, 17, 31, 40, 47])
def test_a_hit_that_ends_inside_a_block_equals_miss(lab: Lab, common: int) -> None:
    """The copied block goes on with the keys and values of other tokens; nothing attends to them."""
    first = Ask(1, lab.prompt(60), 3)
    run = lab.start().ask(first)
    second = Ask(2, first.prompt[:common] + lab.prompt(30, seed=2), 20)
    run.ask(second)
    assert run.cached[2] == common
    lab.assert_exact(run, first, second)


def test_a_prompt_is_found_whole_while_the_first_to_send_it_decodes(lab: Lab) -> None:
    """Its last block is copied between two tokens that its owner writes to it, and again when there are more."""
    prompt = lab.prompt(37)
    first, second, third = Ask(1, prompt, 30), Ask(2, prompt, 8), Ask(3, prompt + lab.prompt(4, seed=3), 8)
    run = lab.start()
    run.add(first)
    for ask in (second, third):
        for _ in range(2):
            run.step()
        run.add(ask)
    run.finish()
    assert run.cached == {1: 0, 2: 36, 3: 37}
    lab.assert_exact(run, first, second, third)


@pytest.mark.parametrize("budget", [1, 7, 16, 33, 64, 100])
def test_any_chunking_of_prefill(lab: Lab, budget: int) -> None:
    ask = Ask(1, lab.prompt(150), 3)
    run = lab.start(max_num_batched_tokens=budget).ask(ask)
    assert run.runner.most_tokens_in_a_step <= budget
    lab.assert_exact(run, ask)


def test_any_company_in_the_batch(lab: Lab) -> None:
    asks = [Ask(i, lab.prompt(length, seed=i)) for i, length in enumerate([1, 5, 16, 17, 70, 130, 64, 2], start=1)]
    run = lab.start(num_blocks=160, max_num_batched_tokens=90).ask(*asks)
    lab.assert_exact(run, *asks)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads(lab: Lab, threads: int) -> None:
    asks = [Ask(1, lab.prompt(90)), Ask(2, lab.prompt(20, seed=2))]
    run = lab.start(threads=threads).ask(*asks)
    lab.assert_exact(run, *asks)


def test_long_contexts_are_cut_among_threads_alike(lab: Lab) -> None:
    ask = Ask(1, lab.prompt(1100), 4)
    one, many = lab.start(threads=1, num_blocks=220).ask(ask), lab.start(threads=3, num_blocks=220).ask(ask)
    assert one.runner.rows == many.runner.rows
    lab.assert_exact(many, ask)


def test_before_and_after_preemption(lab: Lab) -> None:
    groups = len(lab.spec.kv_groups)
    asks = [Ask(1, lab.prompt(40), 30), Ask(2, lab.prompt(40, seed=2), 30)]
    run = lab.start(num_blocks=1 + 7 * groups).ask(*asks)
    assert run.engine.stats.num_preemptions > 0
    lab.assert_exact(run, *asks)


def test_before_and_after_eviction(lab: Lab) -> None:
    groups = len(lab.spec.kv_groups)
    prompt = lab.prompt(60)
    first, sharer, again = Ask(1, prompt), Ask(2, prompt[:16] + lab.prompt(30, seed=2)), Ask(9, prompt)
    traffic = [Ask(seed, lab.prompt(80, seed=seed)) for seed in (3, 4, 5)]
    run = lab.start(num_blocks=1 + 8 * groups).ask(first).ask(sharer)
    for ask in traffic:
        run.ask(ask)
    run.ask(again)
    assert run.cached[9] == 0, "the traffic was to evict it"
    lab.assert_exact(run, first, sharer, *traffic, again)


def test_blocks_written_by_decode_equal_those_written_by_prefill(lab: Lab) -> None:
    told = Ask(1, lab.prompt(20), 40)
    run = lab.start().ask(told)
    text = told.prompt + tuple(run.tokens[1, 0])
    reread = Ask(2, text[:59], 1)
    run.ask(reread)
    assert run.cached[2] >= 48, "it was to read blocks that decode wrote"
    lab.assert_exact(run, told, reread)
    assert run.logits(2, 0).tobytes() == run.logits(1, 39).tobytes()


def test_without_any_cache_at_every_step(lab: Lab) -> None:
    ask = Ask(1, lab.prompt(30), 20, use_cache=False)
    run = lab.start(max_num_batched_tokens=16).ask(ask)
    lab.assert_exact(run, ask)


def test_choices_share_the_prompt_and_copy_on_write(lab: Lab) -> None:
    ask = Ask(1, lab.prompt(25), 20, n=3)
    run = lab.start().ask(ask)
    lab.assert_exact(run, ask)


def test_sampled_choices_equal_themselves_in_any_company(lab: Lab) -> None:
    ask = Ask(1, lab.prompt(25), 12, n=3, temperature=1.0)
    alone = lab.start().ask(ask)
    crowd = [Ask(seed, lab.prompt(30, seed=seed), 15) for seed in range(2, 6)]
    groups = len(lab.spec.kv_groups)
    together = lab.start(num_blocks=1 + 11 * groups, max_num_batched_tokens=20).ask(*crowd, ask)
    assert together.rows_of(1) == alone.rows_of(1)
    assert all(together.tokens[1, choice] == alone.tokens[1, choice] for choice in range(3))
    assert len({tuple(alone.tokens[1, choice]) for choice in range(3)}) > 1


def test_aborting_a_waiting_a_prefilling_and_a_decoding_request_leaves_the_rest_alone(lab: Lab) -> None:
    asks = [Ask(seed, lab.prompt(20 + 9 * seed, seed=seed), 12) for seed in range(1, 9)]
    run = lab.start(max_num_seqs=4, max_num_batched_tokens=40, num_blocks=160)
    for ask in asks:
        run.add(ask)
    for _ in range(4):
        run.step()
    states = {int(r.group.request_id): r for r in run.engine.scheduler}
    waiting = next(s for s in states if s >= 5 and states[s].num_computed_tokens == 0)
    prefilling = next(s for s, r in states.items() if 0 < r.num_computed_tokens < r.num_prompt_tokens)
    decoding = next(s for s, r in states.items() if r.num_output_tokens > 0)
    for seed in (waiting, prefilling, decoding):
        run.abort(seed)
    run.finish()
    lab.assert_exact(run, *(ask for ask in asks if ask.seed not in (waiting, prefilling, decoding)))


@st.composite
def _schedules(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[int, Ask]]]:
    """Engine settings, and requests with the number of steps that pass before each arrives."""
    settings = {
        "threads": draw(st.integers(1, 3)),
        "num_blocks": draw(st.integers(28, 70)),
        "block_size": draw(st.sampled_from([16, 32])),
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.integers(6, 80)),
    }
    asks: list[tuple[int, Ask]] = []
    for seed in range(1, draw(st.integers(2, 7)) + 1):
        # Prompts are cut from three texts, so that they share prefixes of every length.
        text, length = draw(st.integers(0, 2)), draw(st.integers(1, 120))
        ask = Ask(
            seed,
            tuple((text * 7 + i * i) % 331 for i in range(length)),
            max_tokens=draw(st.integers(1, 24)),
            n=draw(st.sampled_from([1, 1, 1, 2, 3])),
            priority=draw(st.integers(0, 1)),
            read_cache=draw(st.booleans()),
        )
        asks.append((draw(st.integers(0, 6)), ask))
    return settings, asks


@st.composite
def _edits(draw: st.DrawFn) -> tuple[dict[str, int], list[Ask]]:
    """Engine settings, and requests each of which continues, cuts or edits an earlier one somewhere, or is new."""
    settings = {"max_num_batched_tokens": draw(st.integers(6, 80)), "block_size": draw(st.sampled_from([16, 32]))}
    asks: list[Ask] = []
    for seed in range(1, draw(st.integers(2, 8)) + 1):
        base = draw(st.sampled_from(asks)).prompt if asks else ()
        cut = draw(st.integers(0, len(base)))
        more = draw(st.lists(st.integers(0, 2), min_size=0 if cut else 1, max_size=40))
        rest = base[cut + draw(st.integers(0, 3)) :] if draw(st.booleans()) else ()
        asks.append(Ask(seed, (*base[:cut], *more, *rest)[:110], draw(st.integers(1, 20))))
    return settings, asks


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.mark.parametrize("shape", ["gqa", "hybrid"])
@settings(max_examples=25)
@given(edits=_edits(), companions=st.booleans())
def test_where_nothing_was_evicted_whatever_was_computed_is_reused_to_the_token(
    shape: str, edits: tuple[dict[str, int], list[Ask]], companions: bool
) -> None:
    lab, (config, asks) = small_lab(shape, _native.supported_isas()[0]), edits
    run = lab.start(num_blocks=500, **config)
    computed: list[tuple[int, ...]] = []
    for ask in asks:
        beside = [Ask(100 + ask.seed, (300 + ask.seed, 330, 330), 12)] if companions else []
        run.ask(ask, *beside)
        true = max((_common(known, ask.prompt) for known in computed), default=0)
        assert run.cached[ask.seed] == min(true, len(ask.prompt) - 1)
        lab.assert_exact(run, ask, *beside)
        computed += [one.prompt + tuple(run.tokens[one.seed, 0][:-1]) for one in (ask, *beside)]


def _check_schedule(lab: Lab, schedule: tuple[dict[str, int], list[tuple[int, Ask]]]) -> None:
    config, arrivals = schedule
    run = lab.start(**config)
    for steps, ask in arrivals:
        for _ in range(steps):
            if run.engine.has_unfinished:
                run.step()
        run.add(ask)
    run.finish()
    lab.assert_exact(run, *(ask for _, ask in arrivals))


@pytest.mark.parametrize("shape", ["gqa", "windowed", "hybrid"])
@settings(max_examples=40)
@given(schedule=_schedules())
def test_any_schedule(shape: str, schedule: tuple[dict[str, int], list[tuple[int, Ask]]]) -> None:
    _check_schedule(small_lab(shape, _native.supported_isas()[0]), schedule)


@pytest.mark.soak
@settings(max_examples=1500)
@given(schedule=_schedules())
def test_any_schedule_on_every_instruction_set(
    lab: Lab, schedule: tuple[dict[str, int], list[tuple[int, Ask]]]
) -> None:
    _check_schedule(lab, schedule)
