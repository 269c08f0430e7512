"""Any arrival, any lengths, any priorities, aborts and a pool too small: the answers are those of a run alone.

Each step is also checked against the rules of scheduling. Hypothesis picks the schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.engine import Engine
from octavo.engine.intake import RequestOptions
from octavo.engine.outputs import RequestOutput
from octavo.engine.sampling_params import SamplingParams
from octavo.engine.scheduler import SchedulerOutput

BLOCK_SIZE = 4
MAX_MODEL_LEN = 48

token = st.integers(1, 4)  # a tiny alphabet, so that prompts share prefixes by themselves
prompts = st.one_of(
    st.lists(token, min_size=1, max_size=30),
    # Prefixes of one text: shared up to a block's end, one token more, one fewer.
    st.integers(1, 30).map(lambda size: ([1, 2, 3] * 12)[:size]),
)


@dataclass(frozen=True)
class Plan:
    """One request of a schedule: when it arrives, and when (steps later) somebody aborts it."""

    prompt: list[int]
    params: SamplingParams
    arrives: int
    aborted_after: int | None
    priority: int
    salt: str


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    params = SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.integers(0, 14)),
        ignore_eos=draw(st.booleans()),
        use_cache=draw(st.sampled_from([True, True, True, False])),
        skip_reading_prefix_cache=draw(st.sampled_from([False, False, True])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 1])),
    )
    return Plan(
        prompt=draw(prompts),
        params=params,
        arrives=draw(st.integers(0, 12)),
        aborted_after=draw(st.one_of(st.none(), st.none(), st.integers(0, 10))),
        priority=draw(st.integers(0, 2)),
        salt=draw(st.sampled_from(["", "", "tenant"])),
    )


class Watch:
    """Checks the rules of scheduling on every step of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._schedule = engine.scheduler.schedule
        engine.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self) -> SchedulerOutput:
        scheduler = self.engine.scheduler
        running = list(scheduler.running)
        decoding = [request for request in running if request.num_missing_tokens == 1]
        output = self._schedule()
        scheduled = set(output.requests)
        assert output.total_num_tokens <= scheduler.max_num_batched_tokens, "the budget bounds a step"
        assert len(scheduler.running) + len(output.forks) <= self.engine.config.max_num_running
        if running:
            assert running[0] in scheduled, "the oldest always progresses"
        for request in decoding:
            assert request in scheduled or request in output.preempted, "a decode waits for no chunk of another"
        if output.preempted:
            assert not output.admitted and not output.forks, "a step that preempted admits nobody"
            kept = [request.order for request in running if request not in output.preempted]
            assert max(kept) < min(request.order for request in output.preempted), "the youngest go first"
            assert all(request.num_computed_tokens == 0 for request in output.preempted)
        if self.engine.has_unfinished:
            assert output.requests, "while anything is unfinished, something is computed"
        return output


def run(engine: Engine, schedule: list[Plan]) -> dict[str, RequestOutput]:
    """Drive ``schedule`` to its end, checking the blocks after every step."""
    Watch(engine)
    whole: dict[str, RequestOutput] = {}

    def collect(outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.request_id in whole:
                assert not whole[output.request_id].finished, "nothing follows the last output"
                whole[output.request_id].extend(output)
            else:
                whole[output.request_id] = output

    work = sum((len(plan.prompt) + (plan.params.max_tokens or 0)) * plan.params.n for plan in schedule)
    limit = 50 + 10 * work + 50 * sum(plan.params.max_tokens or 0 for plan in schedule)
    for step in range(limit):
        for index, plan in enumerate(schedule):
            if plan.arrives == step:
                options = RequestOptions(priority=plan.priority, cache_salt=plan.salt)
                engine.add(engine.intake.accept(plan.prompt, plan.params, request_id=str(index), options=options))
            if plan.aborted_after is not None and plan.arrives + plan.aborted_after == step:
                output = engine.abort(str(index))
                collect([] if output is None else [output])
                assert engine.abort(str(index)) is None
        collect(engine.step())
        engine.kv.check()
        if not engine.has_unfinished and step >= max((plan.arrives for plan in schedule), default=0):
            engine.check_idle()
            return whole
    raise AssertionError(f"somebody starves: {list(engine.scheduler)} after {limit} steps")


@settings(max_examples=300)
@given(
    schedule=st.lists(plans(), min_size=1, max_size=8),
    blocks=st.integers(MAX_MODEL_LEN // BLOCK_SIZE, 40),
    budget=st.integers(1, 24),
    seats=st.integers(1, 6),
    caching=st.booleans(),
    windows=st.sampled_from([(None,), (None,), (None, None), (None, 2), (None, 7), (None, 20, 5)]),
)
def test_answers_do_not_depend_on_the_schedule(
    make_engine: Callable[..., tuple[Engine, object]],
    expected_answer: Callable[..., list[int]],
    schedule: list[Plan],
    blocks: int,
    budget: int,
    seats: int,
    caching: bool,
    windows: tuple[int | None, ...],
) -> None:
    engine, _ = make_engine(
        blocks=blocks * len(windows),
        block_size=BLOCK_SIZE,
        windows=windows,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    outputs = run(engine, schedule)
    for index, plan in enumerate(schedule):
        output = outputs[str(index)]
        assert output.finished
        assert output.num_cached_tokens < len(plan.prompt)
        assert [completion.index for completion in output.outputs] == list(range(plan.params.n))
        for completion in output.outputs:
            expected = expected_answer(plan.prompt, plan.params, plan.params.max_tokens, completion.index)
            if completion.finish_reason == "abort":
                assert completion.token_ids == expected[: len(completion.token_ids)]
            else:
                assert completion.token_ids == expected
                stopped = bool(expected) and expected[-1] == 0 and not plan.params.ignore_eos
                assert completion.finish_reason == ("stop" if stopped else "length")
        if plan.params.prompt_logprobs is not None and output.prompt_logprobs is not None:
            assert len(output.prompt_logprobs) == len(plan.prompt)
            assert output.num_cached_tokens == 0


@settings(max_examples=40)
@given(schedule=st.lists(plans(), min_size=2, max_size=6), seed=st.integers(0, 3))
def test_with_no_pressure_the_cache_never_costs_a_preemption(
    make_engine: Callable[..., tuple[Engine, object]], schedule: list[Plan], seed: int
) -> None:
    engine, _ = make_engine(blocks=400, max_model_len=MAX_MODEL_LEN, seed=seed)
    run(engine, schedule)
    assert engine.stats.num_preemptions == 0


@pytest.mark.parametrize("aborted", [(1, 4, 6), (0, 2, 7)])
def test_abort_of_a_waiting_a_prefilling_and_a_decoding_request_leaves_the_others_alone(
    make_engine: Callable[..., tuple[Engine, object]], aborted: tuple[int, ...]
) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)

    def plan(index: int, when: int | None) -> Plan:
        return Plan([1 + index % 3] * (3 + 5 * index), params, index // 3, when, 0, "")

    def answers(aborts: dict[int, int]) -> dict[int, list[int]]:
        engine, _ = make_engine(blocks=24, max_model_len=60, max_num_seqs=3, max_num_batched_tokens=5)
        outputs = run(engine, [plan(index, aborts.get(index)) for index in range(8)])
        return {index: outputs[str(index)].outputs[0].token_ids for index in range(8)}

    alone, together = answers({}), answers(dict(zip(aborted, (0, 2, 5), strict=True)))
    for index in range(8):
        if index not in aborted:
            assert together[index] == alone[index]
