"""What a request wants kept of its prompt is kept, whatever becomes of the request."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from octavo.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.engine.intake import RequestOptions
from octavo.engine.sampling_params import SamplingParams
from octavo.errors import EngineDeadError, InvalidRequestError

MakeEngine = Callable[..., tuple[Engine, Any]]
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
NOTHING = SamplingParams(max_tokens=0)
PROMPT = list(range(1, 12)) * 2  # 5 blocks of 4 and a half


class Clock:
    """Goes on only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def ask(engine: Engine, prompt: list[int], params: SamplingParams = NOTHING, **options: Any) -> int:
    """Answer ``prompt``; how much of it was cached."""
    group = engine.intake.accept(prompt, params, options=RequestOptions(**options))
    engine.add(group)
    while engine.has_unfinished:
        engine.step()
    engine.check_idle()
    return group.num_cached_tokens or 0


def others(engine: Engine, count: int, length: int = 24) -> None:
    for index in range(count):
        ask(engine, [12 + index % 10, 12 + index // 10, *[12] * (length - 2)])


@pytest.mark.parametrize("params", [GREEDY, NOTHING, SamplingParams(temperature=1, seed=1, n=3, max_tokens=5)])
def test_what_is_retained_is_found_after_traffic_until_its_time_is_over(
    make_engine: MakeEngine, clock: Clock, params: SamplingParams
) -> None:
    engine, _ = make_engine(blocks=40, block_size=4, max_model_len=80)
    ask(engine, PROMPT, params, retain=[(18, 300)])
    others(engine, 60)
    assert engine.gauges().num_retained_blocks == 5
    clock.now += 299
    assert ask(engine, PROMPT) >= 18
    others(engine, 60)
    clock.now += 2
    assert engine.gauges().num_retained_blocks == 0
    others(engine, 60)
    assert ask(engine, PROMPT) == 0


def test_without_it_the_same_traffic_evicts_it(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=40, block_size=4, max_model_len=80)
    ask(engine, PROMPT)
    others(engine, 60)
    assert engine.gauges().num_retained_blocks == 0
    assert ask(engine, PROMPT) == 0


def test_the_time_counts_from_acceptance(make_engine: MakeEngine, clock: Clock) -> None:
    engine, _ = make_engine(block_size=4)
    group = engine.intake.accept(PROMPT, NOTHING, options=RequestOptions(retain=[(8, 10)]))
    clock.now += 8
    engine.add(group)
    while engine.has_unfinished:
        engine.step()
    assert engine.gauges().num_retained_blocks == 2
    clock.now += 3
    assert engine.gauges().num_retained_blocks == 0


def test_several_lengths_have_times_of_their_own(make_engine: MakeEngine, clock: Clock) -> None:
    engine, _ = make_engine(block_size=4)
    ask(engine, PROMPT, retain=[(20, 10), (8, 100)])
    assert engine.gauges().num_retained_blocks == 5
    clock.now += 50
    assert engine.gauges().num_retained_blocks == 2


@pytest.mark.parametrize("step", [3, 4, 64])
def test_a_prompt_computed_in_chunks_is_retained_alike(make_engine: MakeEngine, step: int) -> None:
    engine, _ = make_engine(blocks=60, block_size=4, max_model_len=80, max_num_batched_tokens=step)
    ask(engine, PROMPT, retain=[(22, 300), (5, 300)])
    others(engine, 60)
    assert ask(engine, [*PROMPT, 1]) == 22


def test_preempted_and_computed_again_it_is_retained(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=14, block_size=4, max_model_len=48)
    long = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    older = engine.intake.accept([12] * 22, long)
    younger = engine.intake.accept(PROMPT, long, options=RequestOptions(retain=[(22, 300)]))
    engine.add(older)
    engine.add(younger)
    while engine.has_unfinished:
        engine.step()
    assert younger.metrics.num_preemptions > 0
    assert engine.gauges().num_retained_blocks == 6
    engine.check_idle()


def test_with_windows_a_breakpoint_that_they_have_passed_is_retained(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=80, block_size=4, windows=(None, 6), max_model_len=120)
    prompt = list(range(1, 11)) * 6
    ask(engine, prompt, retain=[(20, 300)])
    others(engine, 60, length=40)
    assert ask(engine, [*prompt[:20], 22]) == 20


def test_a_request_that_needs_all_memory_gets_it(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=10, block_size=4, max_model_len=40, retention_budget=1.0)
    ask(engine, PROMPT, retain=[(22, 300)])
    assert ask(engine, [12] * 39) == 0
    assert engine.gauges().num_retained_blocks == 0


def test_the_budget_is_the_engine_s(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(blocks=41, block_size=4, max_model_len=80, retention_budget=0.1)
    ask(engine, PROMPT, retain=[(22, 300)])
    assert engine.gauges().num_retained_blocks == 4


@pytest.mark.parametrize(
    "retain",
    [
        [(0, 1)],
        [(23, 1)],
        [(1.0, 1)],
        [(True, 1)],
        [("1", 1)],
        [(1, 0)],
        [(1, -1)],
        [(1, math.inf)],
        [(1, math.nan)],
        [(1, True)],
        [(1, "1")],
        [(1,)],
        [(1, 2, 3)],
        [1],
        (1, 2),
        "ab",
        None,
        5,
        {1: 2},
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make_engine: MakeEngine, retain: Any) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError, match="retain must") as caught:
        engine.intake.accept(PROMPT, GREEDY, options=RequestOptions(retain=retain))
    assert caught.value.param == "retain"


@pytest.fixture
def served(make_assembly: Callable[..., tuple[Any, Any]]) -> Any:
    assembly, _ = make_assembly(blocks=60, block_size=4, max_model_len=100)
    engine = AsyncEngine.from_assembly(assembly)
    yield engine
    engine.shutdown()


async def answered(engine: AsyncEngine, prompt: list[int], **options: Any) -> int:
    return [output async for output in engine.generate(prompt, NOTHING, **options)][-1].num_cached_tokens


async def test_what_is_cached_can_be_retained_and_released_while_it_serves(served: AsyncEngine) -> None:
    assert await served.retain(PROMPT, 60) == 0
    await answered(served, PROMPT)
    assert await served.retain([*PROMPT, 1, 2], 60) == 22
    assert (await served.gauges()).num_retained_blocks == 6
    await served.release_retained(PROMPT)
    assert (await served.gauges()).num_retained_blocks == 0
    await answered(served, PROMPT, retain=[(9, 60)])
    assert (await served.gauges()).num_retained_blocks == 3
    assert await served.reset_prefix_cache() >= 6
    assert (await served.gauges()).num_retained_blocks == 0


async def test_one_tenant_retains_nothing_of_another(served: AsyncEngine) -> None:
    await answered(served, PROMPT, cache_salt="alice", retain=[(9, 60)])
    assert await served.retain(PROMPT, 60, cache_salt=b"bob") == 0
    await served.release_retained(PROMPT, cache_salt="bob")
    assert (await served.gauges()).num_retained_blocks == 3
    assert await served.retain(PROMPT, 60, cache_salt=b"alice") == 22


async def test_misuse_is_told_at_once(served: AsyncEngine) -> None:
    for seconds in (0, -1, math.nan, math.inf, "1", True, None):
        with pytest.raises(InvalidRequestError, match="seconds must") as caught:
            await served.retain(PROMPT, seconds)  # type: ignore[arg-type]
        assert caught.value.param == "seconds"
    for wrong in ([], "text", [10**9], None):
        with pytest.raises(InvalidRequestError):
            await served.retain(wrong, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            await served.release_retained(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        await served.retain(PROMPT, 1, cache_salt=5)  # type: ignore[arg-type]
    await asyncio.to_thread(served.shutdown)
    with pytest.raises(EngineDeadError):
        await served.retain(PROMPT, 1)
