from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from octavo.engine.engine import Engine
from octavo.engine.intake import Prompt, RequestOptions
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import RequestStatus
from octavo.engine.sampling_params import SamplingParams
from octavo.errors import ContextLengthError, EngineDeadError, InvalidRequestError

MakeEngine = Callable[..., tuple[Engine, "object"]]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def add(
    engine: Engine, prompt: Prompt, params: SamplingParams = GREEDY, name: str | None = None, **options: object
) -> str:
    group = engine.intake.accept(prompt, params, request_id=name, options=RequestOptions(**options))
    engine.add(group)
    return group.request_id


def finish(engine: Engine) -> dict[str, RequestOutput]:
    whole: dict[str, RequestOutput] = {}
    for _ in range(1000):
        if not engine.has_unfinished:
            break
        for output in engine.step():
            if output.request_id in whole:
                whole[output.request_id].extend(output)
            else:
                whole[output.request_id] = output
    engine.check_idle()
    return whole


def ask(engine: Engine, prompt: Prompt, params: SamplingParams = GREEDY, **options: object) -> RequestOutput:
    name = add(engine, prompt, params, **options)
    return finish(engine)[name]


# Cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 9, 11, 12, 13, 1, 2])
def test_a_prompt_sent_twice_answers_the_same_and_caches_all_but_the_last_token(
    make_engine: MakeEngine, size: int
) -> None:
    engine, _ = make_engine(block_size=4)
    prompt = list(range(1, size + 1))
    first, second = ask(engine, prompt), ask(engine, prompt)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == size - 1


def test_hit_equals_miss_after_eviction(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=12, block_size=4, max_model_len=40)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
    shared, a, b = [1, 2, 3, 4], [5, 6, 7, 8, 9, 10], [11, 12, 13]
    first = ask(engine, shared + a, params)
    assert ask(engine, shared + b, params).num_cached_tokens == 4
    for start in range(14, 20):
        ask(engine, [start] * 20, params)
    again = ask(engine, shared + a, params)
    assert again.num_cached_tokens == 0, "the traffic between was meant to evict it"
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert again.outputs[0].logprobs == first.outputs[0].logprobs


def test_a_conversation_reuses_the_turn_before_with_its_answer(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(block_size=4)
    turn = [1, 2, 3, 4, 5]
    first = ask(engine, turn)
    second = ask(engine, turn + first.outputs[0].token_ids + [7, 8, 9])
    # All that was computed of the first turn: prompt and output but for the token drawn last.
    assert second.num_cached_tokens == len(turn) + len(first.outputs[0].token_ids) - 1


def test_a_second_request_finds_the_whole_prompt_while_the_first_decodes(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(block_size=4)
    prompt = list(range(1, 19))
    add(engine, prompt, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    while not engine.step():
        assert engine.lookup(prompt) in (0, 16), "so far it is not computed"
    assert engine.num_running == 1
    assert engine.lookup(prompt) == 17 and engine.lookup([*prompt, 3]) == 18
    assert ask(engine, [*prompt, 3]).num_cached_tokens == 18


def test_a_request_finds_what_was_computed_up_to_the_first_token_that_differs(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(block_size=4)
    first = ask(engine, list(range(1, 19)))
    computed = [*range(1, 19), *first.outputs[0].token_ids[:-1]]
    for common, different in enumerate([*((token + 1) % 24 for token in computed), 1]):
        engine.reset_prefix_cache()
        ask(engine, list(range(1, 19)))
        asked = [*computed[:common], different, different]
        assert engine.lookup(asked) == common
        assert ask(engine, asked).num_cached_tokens == common


def test_a_lookup_is_of_one_tenant_and_changes_nothing(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    ask(engine, list(range(1, 20)), cache_salt="a")
    before = engine.report()
    assert engine.lookup(list(range(1, 20)), b"a") == 18
    assert engine.lookup(list(range(1, 20)), b"b") == engine.lookup(list(range(1, 20))) == 0
    assert engine.report() == before


def test_a_preempted_request_comes_back_with_all_that_is_still_there(make_engine: MakeEngine) -> None:
    """The older takes one block at a time, so that most of what the younger computed stays."""
    engine, _ = make_engine(blocks=12, max_model_len=40)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    add(engine, list(range(1, 18)), params)
    add(engine, [20] * 18, params)
    while not engine.stats.num_preemptions:
        engine.step()
    [victim] = engine.scheduler.waiting
    found = engine.lookup(victim.token_ids)
    assert found >= victim.num_tokens // 4 * 4 - 4
    while engine.has_unfinished:
        engine.step()
    engine.check_idle()


def test_tenants_do_not_share(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    prompt = list(range(1, 20))
    assert ask(engine, prompt, cache_salt="a").num_cached_tokens == 0
    assert ask(engine, prompt, cache_salt="b").num_cached_tokens == 0
    assert ask(engine, prompt, cache_salt="a").num_cached_tokens == 18


def test_caching_is_off_per_engine_and_per_request(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(enable_prefix_caching=False)
    prompt = list(range(1, 20))
    assert [ask(engine, prompt).num_cached_tokens for _ in range(2)] == [0, 0]
    engine, _ = make_engine()
    skipping = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, skip_reading_prefix_cache=True)
    assert [ask(engine, prompt, skipping).num_cached_tokens for _ in range(2)] == [0, 0]
    assert ask(engine, prompt).num_cached_tokens == 18, "what it computed is shared all the same"


def test_use_cache_false_recomputes_every_token_at_every_step_and_leaves_no_trace(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(max_num_batched_tokens=64)
    prompt = list(range(1, 11))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, use_cache=False)
    ask(engine, prompt)
    before = engine.snapshot()
    cached = engine.kv.num_cached_blocks
    slow = ask(engine, prompt, params)
    assert engine.stats.num_computed_tokens - before.num_computed_tokens == 10 + 11 + 12 + 13
    assert slow.num_cached_tokens == 0 and engine.kv.num_cached_blocks == cached
    assert slow.outputs[0].token_ids == ask(engine, prompt).outputs[0].token_ids[:4]


def test_max_tokens_zero_computes_and_publishes_the_prompt(make_engine: MakeEngine) -> None:
    engine, runner = make_engine(max_num_batched_tokens=8)
    prompt = list(range(1, 20))
    output = ask(engine, prompt, SamplingParams(max_tokens=0, n=2))
    assert [completion.token_ids for completion in output.outputs] == [[], []]
    assert {completion.finish_reason for completion in output.outputs} == {"length"}
    assert all(len(batch.logit_rows) == 0 for batch in runner.batches), "no logits were asked for"
    assert ask(engine, [*prompt, 20]).num_cached_tokens == 19, "the partly filled last block is shared too"


def test_reset_prefix_cache_forgets_everything(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    ask(engine, list(range(1, 20)))
    assert engine.reset_prefix_cache() > 0
    assert ask(engine, list(range(1, 20))).num_cached_tokens == 0


# Choices ---------------------------------------------------------------------------------------------


def test_n_choices_compute_the_prompt_once_and_differ_by_their_index_alone(
    make_engine: MakeEngine, expected_answer: Callable[..., list[int]]
) -> None:
    engine, _ = make_engine(max_num_batched_tokens=64)
    params = SamplingParams(n=4, seed=3, max_tokens=8, ignore_eos=True)
    prompt = list(range(1, 11))
    output = ask(engine, prompt, params)
    for completion in output.outputs:
        assert completion.token_ids == expected_answer(prompt, params, 8, completion.index)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) > 1
    assert engine.stats.num_computed_tokens == 10 + 4 * 7


def test_when_the_leader_is_aborted_the_next_sibling_leads(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(max_num_batched_tokens=4)
    add(engine, list(range(1, 11)), SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True), "a")
    engine.step()
    leader, *siblings = engine.scheduler
    assert leader.status is RequestStatus.RUNNING
    assert all(sibling.status is RequestStatus.WAITING for sibling in siblings)
    engine.scheduler.finish(leader, "abort")
    output = finish(engine)["a"]
    assert [completion.index for completion in output.outputs] == [1, 2]
    assert all(completion.finish_reason == "length" for completion in output.outputs)


def test_a_preempted_leader_that_reaches_its_prompts_end_again_forks_nobody(make_engine: MakeEngine) -> None:
    """Only a request without output draws from the prompt's last row; this one computes its output next."""
    engine, _ = make_engine(blocks=5, max_num_seqs=2, max_num_batched_tokens=12, enable_prefix_caching=False)
    params = SamplingParams(n=2, temperature=0, max_tokens=5, ignore_eos=True)
    add(engine, [9], SamplingParams(max_tokens=5, ignore_eos=True), "holds the other seat")
    add(engine, list(range(1, 13)), params, "leads")
    for _ in range(4):
        engine.step()
    leader = engine.scheduler.running[-1]
    assert (leader.group.request_id, leader.num_output_tokens) == ("leads", 3)
    engine.step()  # the other one takes its second block, the last there was, and ends
    assert (engine.num_running, leader.num_computed_tokens, engine.stats.num_preemptions) == (0, 0, 1)
    output = finish(engine)["leads"]
    assert output.outputs[1].token_ids == ask(engine, list(range(1, 13)), params).outputs[0].token_ids


# Scheduling ------------------------------------------------------------------------------------------


def test_a_long_prompt_delays_a_decode_by_no_more_than_one_chunk(make_engine: MakeEngine) -> None:
    engine, runner = make_engine(blocks=100, max_num_batched_tokens=8)
    add(engine, [1, 2], SamplingParams(max_tokens=20, ignore_eos=True), "decoding")
    engine.step()
    add(engine, [3] * 60, GREEDY, "long")
    for _ in range(8):
        produced = [output.request_id for output in engine.step()]
        assert "decoding" in produced
        assert len(runner.batches[-1].token_ids) == 8
    finish(engine)


def test_a_more_urgent_request_goes_first(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(max_num_seqs=1)
    for name, priority in (("last", 2), ("first", 0), ("second", 1), ("third", 1)):
        add(engine, [1, 2, 3], GREEDY, name, priority=priority)
    order: list[str] = []
    while engine.has_unfinished:
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["first", "second", "third", "last"]


def test_a_shared_prefix_in_flight_is_waited_for_and_lets_others_pass(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=100, max_num_batched_tokens=15)
    prompt = list(range(1, 21))
    add(engine, prompt, GREEDY, "computes")
    add(engine, [*prompt, 21], GREEDY, "waits")
    add(engine, [9, 9], GREEDY, "passes")
    engine.step()
    engine.step()  # the last 5 tokens of the prompt: there is budget for 10 more
    assert [request.group.request_id for request in engine.scheduler.waiting] == ["waits"]
    assert [request.group.request_id for request in engine.scheduler.running] == ["computes", "passes"]
    outputs = finish(engine)
    assert outputs["waits"].num_cached_tokens == 20


def test_nobody_is_admitted_only_to_be_preempted_before_the_prompt_is_done(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=15, max_model_len=60, max_num_batched_tokens=8)
    for start in range(1, 5):
        add(engine, [start] * 36, GREEDY)
    finish(engine)
    assert engine.stats.num_preemptions == 0
    assert engine.stats.num_computed_tokens == 4 * (36 + 5)


def test_choices_do_not_compute_the_prompt_beside_each_other(make_engine: MakeEngine) -> None:
    for caching in (True, False):
        engine, _ = make_engine(blocks=100, max_num_batched_tokens=7, enable_prefix_caching=caching)
        add(engine, [9, 9, 9], SamplingParams(max_tokens=8, ignore_eos=True))
        add(engine, list(range(1, 11)), SamplingParams(n=3, max_tokens=2, ignore_eos=True))
        finish(engine)
        assert engine.stats.num_computed_tokens == 3 + 7 + 10 + 3


def test_deadline_ends_a_waiting_and_a_running_request_with_what_they_have(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(max_num_seqs=1)
    long = SamplingParams(max_tokens=100, ignore_eos=True)
    add(engine, [1, 2, 3], long, "running", timeout=0.05)
    add(engine, [4, 5, 6], long, "waiting", timeout=0.05)
    engine.step()
    time.sleep(0.06)
    outputs = {output.request_id: output for output in engine.step()}
    engine.check_idle()
    for name in ("running", "waiting"):
        assert outputs[name].finished
        assert outputs[name].outputs[0].finish_reason == "timeout"


def test_abort_frees_blocks_whatever_the_state(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=100, max_num_seqs=2, max_num_batched_tokens=6)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    add(engine, [1, 2], params, "decoding")
    engine.step()
    add(engine, [3] * 30, params, "prefilling")
    add(engine, [4] * 5, params, "waiting")
    engine.step()
    states = {request.group.request_id: request for request in engine.scheduler}
    assert states["decoding"].num_output_tokens == 2
    assert 0 < states["prefilling"].num_computed_tokens < 30
    assert states["waiting"].status is RequestStatus.WAITING
    for name in states:
        output = engine.abort(name)
        assert output is not None and output.finished
        assert output.outputs[0].finish_reason == "abort"
        engine.kv.check()
        assert engine.abort(name) is None
    engine.check_idle()


# Ending ----------------------------------------------------------------------------------------------


def test_eos_and_stop_tokens_end_an_answer_and_say_so(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    prompt = [1, 2, 3]
    tokens = ask(engine, prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)).outputs[0].token_ids
    stop = next(token for token in tokens[2:] if token != 0)
    stopped = ask(
        engine, prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop_token_ids=[stop])
    ).outputs[0]
    assert stopped.token_ids == tokens[: tokens.index(stop) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    forced = ask(engine, prompt, SamplingParams(max_tokens=20, allowed_token_ids=[0])).outputs[0]
    assert (forced.token_ids, forced.finish_reason, forced.stop_reason) == ([0], "stop", None)


def test_min_tokens_bans_what_would_end_the_answer(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    params = SamplingParams(
        temperature=0, max_tokens=20, min_tokens=5, logit_bias={0: 100, 7: 99, 8: 50}, stop_token_ids=[7]
    )
    assert ask(engine, [1, 2, 3], params).outputs[0].token_ids == [8] * 5 + [0]


def test_penalties_count_output_across_a_preemption(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, presence_penalty=2, frequency_penalty=1)
    roomy, _ = make_engine(blocks=100, max_model_len=48)
    alone = [ask(roomy, [start, 2, 3], params).outputs[0].token_ids for start in range(1, 5)]
    tight, _ = make_engine(blocks=12, max_model_len=48)
    names = [add(tight, [start, 2, 3], params) for start in range(1, 5)]
    outputs = finish(tight)
    assert tight.stats.num_preemptions > 0
    assert [outputs[name].outputs[0].token_ids for name in names] == alone
    assert outputs[names[-1]].metrics.num_preemptions > 0


def test_a_request_of_which_no_token_may_be_drawn_ends_and_the_others_go_on(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    impossible = SamplingParams(max_tokens=4, allowed_token_ids=[5], min_tokens=1)
    add(engine, [1, 2], impossible, "ends")
    engine.scheduler.waiting[0].shaping.allowed[:] = 0
    add(engine, [1, 2], GREEDY, "goes on")
    outputs = finish(engine)
    assert outputs["ends"].outputs[0].finish_reason == "error"
    assert outputs["goes on"].outputs[0].finish_reason == "length"


# Log-probabilities -----------------------------------------------------------------------------------


def test_prompt_logprobs_asked_for_twice_are_complete_and_equal(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(max_num_batched_tokens=5)
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2, ignore_eos=True)
    prompt = list(range(1, 18))
    first = ask(engine, prompt, params)
    ask(engine, [*prompt, 20], GREEDY)
    again = ask(engine, prompt, params)
    assert first.prompt_logprobs is not None and first.prompt_logprobs == again.prompt_logprobs
    assert len(first.prompt_logprobs) == 17 and first.prompt_logprobs[0] is None
    for token, entry in zip(prompt[1:], first.prompt_logprobs[1:], strict=True):
        assert entry is not None and 2 <= len(entry) <= 3
        assert next(iter(entry)) == token
        assert sorted(value.rank for value in entry.values())[:2] == [1, 2]
    assert again.num_cached_tokens == 0


def test_logprobs_add_up_and_name_the_drawn_token_first(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    output = ask(engine, [1, 2, 3], SamplingParams(seed=1, max_tokens=8, logprobs=3, ignore_eos=True)).outputs[0]
    assert output.logprobs is not None and len(output.logprobs) == 8
    drawn = [entry[token] for token, entry in zip(output.token_ids, output.logprobs, strict=True)]
    assert [next(iter(entry)) for entry in output.logprobs] == output.token_ids
    assert output.cumulative_logprob == pytest.approx(sum(value.logprob for value in drawn))
    assert all(math.isfinite(value.logprob) for value in drawn)


def test_seeds_make_draws_repeatable_and_unseeded_requests_differ(make_engine: MakeEngine) -> None:
    seeded = SamplingParams(seed=11, max_tokens=12, ignore_eos=True)
    free = SamplingParams(max_tokens=12, ignore_eos=True)
    engine, _ = make_engine(seed=1)
    assert ask(engine, [1, 2], seeded).outputs[0].token_ids == ask(engine, [1, 2], seeded).outputs[0].token_ids
    drawn = [ask(engine, [1, 2], free).outputs[0].token_ids for _ in range(2)]
    assert drawn[0] != drawn[1]
    other, _ = make_engine(seed=1)
    assert [ask(other, [1, 2], free).outputs[0].token_ids for _ in range(2)] == drawn


# Bad input and failure -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "no tokens"),
        ([1, 24], "token id 24 is not in this model's vocabulary of 0 to 23"),
        ([-1], "token id -1"),
        ([1, "x"], "whole number"),
        ([1, 2.5], "whole number"),
        ([True], "whole number"),
        (7, "a text or a list of token ids"),
        (None, "a text or a list of token ids"),
        ({}, "a prompt mapping has"),
        ({"text": "hi"}, "got ['text']"),
        ({"prompt": [1]}, "must be text"),
        ({"prompt_token_ids": "hi"}, "a text or a list of token ids"),
        ("hello", "no tokenizer"),
    ],
)
def test_what_is_no_prompt_is_refused_before_it_costs_anything(
    make_engine: MakeEngine, prompt: Prompt, said: str
) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError) as refused:
        add(engine, prompt)
    assert said in str(refused.value) and refused.value.param == "prompt"
    assert not engine.has_unfinished


def test_too_long_is_refused_with_both_sizes_never_cut(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=100, max_model_len=50)
    with pytest.raises(ContextLengthError, match=r"51 tokens; the context holds 50") as refused:
        add(engine, [1] * 51, SamplingParams(max_tokens=0))
    assert (refused.value.requested, refused.value.limit) == (51, 50)
    with pytest.raises(ContextLengthError, match=r"51 together; the context holds 50") as refused:
        add(engine, [1] * 40, SamplingParams(max_tokens=11))
    assert (refused.value.requested, refused.value.limit, refused.value.param) == (51, 50, "max_tokens")
    with pytest.raises(ContextLengthError):
        add(engine, [1] * 50, SamplingParams(max_tokens=None))
    assert len(ask(engine, [1] * 40, SamplingParams(max_tokens=10, ignore_eos=True)).outputs[0].token_ids) == 10
    to_the_end = ask(engine, [1] * 40, SamplingParams(max_tokens=None, ignore_eos=True)).outputs[0]
    assert (len(to_the_end.token_ids), to_the_end.finish_reason) == (10, "length")


@pytest.mark.parametrize("max_model_len", [100, 20])
def test_what_never_fits_the_kv_memory_is_refused_with_both_sizes(make_engine: MakeEngine, max_model_len: int) -> None:
    engine, _ = make_engine(blocks=5, block_size=4, max_model_len=max_model_len)
    with pytest.raises(ContextLengthError, match="21 together; the KV memory holds 20"):
        add(engine, [1] * 11, SamplingParams(max_tokens=10))
    assert ask(engine, [1] * 10, SamplingParams(max_tokens=10)).finished


def test_windows_count_in_what_fits_the_kv_memory(make_engine: MakeEngine) -> None:
    """A window of 5 and a step of 16 take 6 blocks of 4 at most, and what is left is for full attention."""
    engine, _ = make_engine(blocks=16, block_size=4, windows=(None, 5), max_num_batched_tokens=16)
    with pytest.raises(ContextLengthError, match="41 together; the KV memory holds 40"):
        add(engine, [1] * 11, SamplingParams(max_tokens=30))
    assert ask(engine, [1] * 10, SamplingParams(max_tokens=30)).finished
    unbounded, _ = make_engine(blocks=6, block_size=4, windows=(5,), max_num_batched_tokens=16, max_model_len=70)
    with pytest.raises(ContextLengthError, match="71 together; the context holds 70"):
        add(unbounded, [1] * 11, SamplingParams(max_tokens=60))


def test_what_windows_have_passed_makes_room_for_others(make_engine: MakeEngine) -> None:
    """Each of the four comes to have 12 blocks of tokens in each group; with a window it holds 3 of them at most."""
    engine, _ = make_engine(blocks=4 * 12 + 4 * 3, block_size=4, windows=(None, 8), enable_prefix_caching=False)
    for seed in range(4):
        add(engine, [1, 2, seed], SamplingParams(max_tokens=45, ignore_eos=True, seed=seed))
    while engine.has_unfinished:
        engine.step()
    assert engine.stats.num_preemptions == 0
    engine.check_idle()


@pytest.mark.parametrize(
    ("name", "value"), [("stop_token_ids", [24]), ("allowed_token_ids", [1, 30]), ("logit_bias", {24: 1.0})]
)
def test_params_that_name_unknown_tokens_are_refused(make_engine: MakeEngine, name: str, value: object) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError, match="vocabulary is 0 to 23") as refused:
        add(engine, [1], SamplingParams(**{name: value}))
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "high"),
        ("priority", True),
        ("timeout", 0),
        ("timeout", "1"),
        ("timeout", math.nan),
        ("timeout", math.inf),
        ("timeout", 10**400),
        ("cache_salt", 3),
        ("cache_salt", "half a pair \ud800"),
    ],
)
def test_options_out_of_range_are_refused(make_engine: MakeEngine, name: str, value: object) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError) as refused:
        add(engine, [1], **{name: value})
    assert refused.value.param == name


def test_a_request_id_that_is_not_text_is_refused(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError, match="request_id must be text; got list"):
        engine.intake.accept([1], GREEDY, request_id=[1])  # type: ignore[arg-type]


def test_a_request_id_in_use_is_refused(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    add(engine, [1], GREEDY, "same")
    with pytest.raises(InvalidRequestError, match="'same' is in use"):
        add(engine, [2], GREEDY, "same")
    assert list(finish(engine)) == ["same"]
    assert ask(engine, [1], GREEDY, name="same").finished


def test_a_failure_of_the_native_call_ends_the_engine_and_gives_all_blocks_back(make_engine: MakeEngine) -> None:
    engine, runner = make_engine(max_num_seqs=2)
    for start in range(1, 5):
        add(engine, [start] * 8, SamplingParams(max_tokens=20, n=2))
    runner.fail_at = 3
    with pytest.raises(EngineDeadError, match="on fire") as died:
        finish(engine)
    assert isinstance(died.value.__cause__, MemoryError)
    engine.check_idle()
    with pytest.raises(EngineDeadError, match="on fire"):
        add(engine, [1])
    engine.close()
    with pytest.raises(EngineDeadError, match="on fire"):
        engine.step()


def test_stats_count_what_happened(make_engine: MakeEngine) -> None:
    engine, runner = make_engine(max_num_batched_tokens=8)
    ask(engine, list(range(1, 13)))
    ask(engine, list(range(1, 13)))
    stats = engine.snapshot()
    assert stats.num_requests == 2
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (24, 11)
    assert stats.num_generated_tokens == 12
    assert stats.num_computed_tokens == sum(len(batch.token_ids) for batch in runner.batches)
    assert stats.num_steps == len(runner.batches)
    assert stats.python_seconds > 0
