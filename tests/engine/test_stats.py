"""What an engine says about itself agrees with what its requests got, over any traffic.

Hypothesis picks prompts, parameters, arrivals and aborts; pools are small, so that requests are preempted and blocks
evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.engine import Engine
from octavo.engine.intake import RequestOptions
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import Request
from octavo.engine.sampling_params import SamplingParams
from octavo.engine.scheduler import SchedulerOutput

MakeEngine = Callable[..., tuple[Engine, object]]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@dataclass(frozen=True)
class Visit:
    """One request: when it comes, and how many steps later somebody aborts it."""

    prompt: list[int]
    params: SamplingParams
    arrives: int
    aborted_after: int | None


@st.composite
def visits(draw: st.DrawFn) -> Visit:
    params = SamplingParams(
        n=draw(st.sampled_from([1, 1, 2, 3])),
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.integers(0, 12)),
        use_cache=draw(st.sampled_from([True, True, True, False])),
        skip_reading_prefix_cache=draw(st.sampled_from([False, False, True])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 1])),
    )
    prompt = draw(
        st.integers(1, 30).map(lambda size: ([1, 2, 3] * 12)[:size]) | st.lists(st.integers(1, 4), min_size=1)
    )
    aborted_after = draw(st.sampled_from([None, None, None, 0, 1, 4, 9]))
    return Visit(prompt[:30], params, draw(st.integers(0, 10)), aborted_after)


class Recount:
    """Counts anew, position by position, which prompt tokens were there, lost to a preemption and computed again."""

    def __init__(self, engine: Engine) -> None:
        self.recomputed = 0
        self._lost: dict[Request, set[int]] = {}
        self._scheduler = engine.scheduler
        self._schedule = engine.scheduler.schedule
        engine.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self) -> SchedulerOutput:
        computed = {request: request.num_computed_tokens for request in self._scheduler.running}
        output = self._schedule()
        for request in output.preempted:
            there = range(min(computed[request], request.num_prompt_tokens))
            self._lost.setdefault(request, set()).update(there)
        for request, count in zip(output.requests, output.num_tokens, strict=True):
            start = request.num_computed_tokens
            again = self._lost.get(request, set()).intersection(range(start, start + count))
            self._lost.get(request, set()).difference_update(again)
            self.recomputed += len(again)
        return output


def run(engine: Engine, traffic: list[Visit]) -> dict[str, RequestOutput]:
    """Drive ``traffic`` to its end; after every step each block is active, cached or free."""
    whole: dict[str, RequestOutput] = {}

    def collect(outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.request_id in whole:
                whole[output.request_id].extend(output)
            else:
                whole[output.request_id] = output

    step = 0
    while engine.has_unfinished or step <= max(visit.arrives for visit in traffic):
        for index, visit in enumerate(traffic):
            if visit.arrives == step:
                options = RequestOptions(priority=index % 2)
                engine.add(engine.intake.accept(visit.prompt, visit.params, request_id=str(index), options=options))
            if visit.aborted_after is not None and visit.arrives + visit.aborted_after == step:
                output = engine.abort(str(index))
                collect([] if output is None else [output])
        collect(engine.step())
        check_gauges(engine)
        step += 1
    return whole


def check_gauges(engine: Engine) -> None:
    gauges = engine.gauges()
    pool = [block for block in engine.kv._pool._blocks if block.block_id]
    held = [block for block in pool if block.ref_count]
    assert gauges.num_blocks == len(pool) == engine.plan.num_blocks - 1
    assert gauges.num_active_blocks == len(held)
    assert gauges.num_cached_blocks == sum(b.block_hash is not None and not b.ref_count for b in pool)
    assert gauges.num_active_blocks + gauges.num_cached_blocks + gauges.num_free_blocks == gauges.num_blocks
    assert gauges.kv_cache_usage == len(held) / len(pool)
    assert (gauges.num_running, gauges.num_waiting) == (engine.num_running, engine.num_waiting)


@settings(max_examples=120)
@given(
    traffic=st.lists(visits(), min_size=1, max_size=7),
    blocks=st.integers(13, 30),
    budget=st.integers(1, 24),
    caching=st.sampled_from([True, True, False]),
    windows=st.sampled_from([(None,), (None,), (None, 5)]),
)
def test_counters_are_the_sums_of_what_requests_got(
    make_engine: MakeEngine,
    traffic: list[Visit],
    blocks: int,
    budget: int,
    caching: bool,
    windows: tuple[int | None, ...],
) -> None:
    engine, _ = make_engine(
        blocks=blocks * len(windows),
        windows=windows,
        max_model_len=48,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    recount = Recount(engine)
    outputs = run(engine, traffic)
    stats, ended = engine.snapshot(), [outputs[str(index)] for index in range(len(traffic))]
    answers = [answer for output in ended for answer in output.outputs]
    scheduled = [
        (visit, output)
        for visit, output in zip(traffic, ended, strict=True)
        if output.metrics.first_scheduled_time is not None
    ]
    looking = [visit for visit, _ in scheduled if reads(visit.params) and caching]
    assert stats.num_requests == len(answers) == sum(stats.num_finished.values())
    assert +Counter(stats.num_finished) == Counter(answer.finish_reason for answer in answers)
    assert stats.num_generated_tokens == sum(len(answer.token_ids) for answer in answers)
    assert stats.num_prompt_tokens == sum(len(visit.prompt) for visit, _ in scheduled)
    assert stats.num_queried_tokens == sum(len(visit.prompt) for visit in looking)
    assert stats.num_cached_tokens == sum(output.num_cached_tokens for output in ended) <= stats.num_queried_tokens
    assert stats.num_preemptions == sum(output.metrics.num_preemptions for output in ended)
    assert stats.num_recomputed_prompt_tokens == recount.recomputed
    assert stats.tokens_per_step.count == stats.num_steps
    assert stats.tokens_per_step.sum == stats.num_computed_tokens
    assert stats.block_lifetime.count == stats.block_idle_before_evict.count
    assert stats.block_lifetime.sum >= stats.block_idle_before_evict.sum >= 0


def reads(params: SamplingParams) -> bool:
    return params.use_cache and not params.skip_reading_prefix_cache and params.prompt_logprobs is None


def test_a_prompt_is_looked_up_once_for_n_answers_and_once_when_it_is_preempted(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=14, max_model_len=48, max_num_batched_tokens=4)
    prompts = [[1 + index] * 20 for index in range(2)]
    params = SamplingParams(n=3, temperature=1, seed=1, max_tokens=16, ignore_eos=True)
    run(engine, [Visit(prompt, params, 0, None) for prompt in prompts])
    stats = engine.snapshot()
    assert stats.num_preemptions > 0 and stats.num_recomputed_prompt_tokens > 0
    assert stats.num_prompt_tokens == stats.num_queried_tokens == 40


def test_blocks_evicted_and_used_again_are_counted(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=14, max_model_len=48)
    turn = [Visit([1] * 20, GREEDY, 0, None)]
    run(engine, turn)
    assert engine.stats.block_reuse_gap.count == engine.stats.block_lifetime.count == 0
    run(engine, turn)
    assert engine.stats.block_reuse_gap.count == 7, "5 by the hit; 2 by computing the same and taking what was there"
    free = engine.gauges().num_free_blocks
    run(engine, [Visit([2] * 42, GREEDY, 0, None)])
    assert engine.stats.block_lifetime.count == 12 - free, "47 tokens were computed, in blocks of 4"


def test_a_snapshot_stays_as_it_was(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    before = engine.snapshot()
    run(engine, [Visit([1] * 20, GREEDY, 0, None)])
    assert before.tokens_per_step.count == sum(before.num_finished.values()) == 0
    assert engine.report() == (engine.snapshot(), engine.gauges(), None)
