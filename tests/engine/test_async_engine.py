from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from octavo.async_engine import AsyncEngine
from octavo.engine.outputs import RequestOutput
from octavo.engine.sampling_params import SamplingParams
from octavo.errors import ContextLengthError, EngineDeadError, InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
MakeAssembly = Callable[..., tuple[Any, Any]]


@pytest.fixture
def served(make_assembly: MakeAssembly) -> Any:
    """An engine that serves, and the runner behind it."""
    assembly, runner = make_assembly(blocks=400, max_model_len=1000)
    engine = AsyncEngine.from_assembly(assembly)
    yield engine, assembly.engine, runner
    engine.shutdown()


async def whole(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    first: RequestOutput | None = None
    async for output in outputs:
        if first is None:
            first = output
        else:
            first.extend(output)
    assert first is not None
    return first


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never happened")


async def test_many_consumers_get_what_they_would_alone(served: Any, expected_answer: Callable[..., list[int]]) -> None:
    engine, core, _ = served
    prompts = [[1 + i % 4] * (1 + i) for i in range(24)]
    outputs = await asyncio.gather(*(whole(engine.generate(prompt, GREEDY)) for prompt in prompts))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.finished and output.outputs[0].token_ids == expected_answer(prompt, GREEDY, 12)
    assert (await engine.stats()).num_requests == 24
    core.check_idle()


async def test_a_cancelled_consumer_aborts_at_once_and_alone(served: Any) -> None:
    engine, core, _ = served
    alone = await whole(engine.generate("abc", GREEDY))
    task = asyncio.create_task(whole(engine.generate("abcd", ENDLESS)))
    await until(lambda: core.num_running == 1)
    other = asyncio.create_task(whole(engine.generate("abc", GREEDY)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await other).outputs[0].token_ids == alone.outputs[0].token_ids
    await until(lambda: not core.has_unfinished)
    core.check_idle()


async def test_closing_the_generator_aborts(served: Any) -> None:
    engine, core, _ = served
    outputs = engine.generate("abcd", ENDLESS)
    await anext(outputs)
    await outputs.aclose()
    await until(lambda: not core.has_unfinished)
    core.check_idle()


async def test_accept_and_stream_are_generate_in_two(served: Any) -> None:
    engine, core, _ = served
    alone = await whole(engine.generate("abc", GREEDY))
    group = await engine.accept("abc", GREEDY, "mine")
    assert not core.has_unfinished, "accepting queues nothing"
    output = await whole(engine.stream(group))
    assert output.request_id == "mine"
    assert output.outputs[0].token_ids == alone.outputs[0].token_ids
    core.check_idle()


async def test_what_is_refused_is_refused_by_accept(served: Any) -> None:
    engine, core, _ = served
    with pytest.raises(ContextLengthError):
        await engine.accept("abc", SamplingParams(max_tokens=2000))
    assert core.stats.num_requests == 0


async def test_a_stream_that_is_never_begun_queues_nothing(served: Any) -> None:
    engine, core, _ = served
    outputs = engine.stream(await engine.accept("abcd", ENDLESS))
    await outputs.aclose()
    assert (await engine.stats()).num_requests == 0
    core.check_idle()


async def test_a_group_is_streamed_once(served: Any) -> None:
    engine, core, _ = served
    group = await engine.accept("abcd", ENDLESS)
    outputs = engine.stream(group)
    await anext(outputs)
    for _ in range(2):  # while it runs, and after
        with pytest.raises(InvalidRequestError):
            await anext(engine.stream(group))
        await outputs.aclose()
        await until(lambda: not core.has_unfinished)
    assert core.stats.num_requests == 1


async def test_a_conversation_is_rendered_as_chat_renders_it(served: Any) -> None:
    engine, _, _ = served
    messages = [{"role": "user", "content": "abc"}]
    rendered = await engine.render(messages)
    assert (await whole(engine.chat(messages, GREEDY))).prompt_token_ids == rendered.prompt_token_ids
    with pytest.raises(InvalidRequestError):
        await engine.render("no messages")


async def test_gauges_tell_what_runs_and_what_stays_cached(served: Any) -> None:
    engine, core, _ = served
    idle = await engine.gauges()
    assert (idle.num_running, idle.num_waiting, idle.num_active_blocks, idle.num_cached_blocks) == (0, 0, 0, 0)
    assert idle.num_free_blocks == idle.num_blocks == core.plan.num_blocks - 1
    outputs = engine.generate("abcd", ENDLESS)
    await anext(outputs)
    busy = await engine.gauges()
    assert busy.num_running == 1 and busy.num_active_blocks > 0
    assert busy.kv_cache_usage == busy.num_active_blocks / busy.num_blocks
    report = await engine.report()
    assert report.gauges.num_running == report.stats.num_requests == 1
    await outputs.aclose()
    after = await engine.gauges()
    assert after.num_running == 0 and after.kv_cache_usage == 0 and after.num_cached_blocks > 0
    assert after.num_cached_blocks + after.num_free_blocks == after.num_blocks


async def test_a_slow_consumer_blocks_nobody_and_loses_nothing(served: Any) -> None:
    engine, core, _ = served
    fast = await whole(engine.generate("abc", GREEDY))
    slow = engine.generate("abc", GREEDY)
    first = await anext(slow)
    await whole(engine.generate("bcd", GREEDY))
    await until(lambda: not core.has_unfinished)
    rest = [output async for output in slow]
    # A fast engine may have finished before the first look; there is never more than one increment left over.
    assert len(rest) <= 1, "what it did not take in time was merged"
    for output in rest:
        first.extend(output)
    assert first.finished
    assert first.outputs == fast.outputs


async def test_abort_by_id_ends_the_consumer_with_what_it_has(served: Any) -> None:
    engine, core, _ = served
    task = asyncio.create_task(whole(engine.generate("abcd", ENDLESS, "mine")))
    await until(lambda: core.num_running == 1)
    with pytest.raises(InvalidRequestError, match="'mine' is in use"):
        await whole(engine.generate("abcd", GREEDY, "mine"))
    await engine.abort("mine")
    await engine.abort("nobody's")
    output = await task
    assert output.finished and output.outputs[0].finish_reason == "abort"
    await until(lambda: not core.has_unfinished)
    core.check_idle()


async def test_bad_requests_are_refused_and_harm_nobody(served: Any) -> None:
    engine, _, _ = served
    for prompt in ([], [99], {"text": "x"}):
        with pytest.raises(InvalidRequestError):
            await whole(engine.generate(prompt, GREEDY))
    assert engine.is_healthy
    assert (await whole(engine.generate("abc", GREEDY))).finished


async def test_chat_and_cache_control_from_asyncio(served: Any) -> None:
    engine, _, _ = served
    messages = [{"role": "user", "content": "abc"}]
    output = await whole(engine.chat(messages, GREEDY))
    assert output.prompt == "u abc\na " and output.num_cached_tokens == 0
    assert (await whole(engine.chat(messages, GREEDY))).num_cached_tokens > 0
    assert await engine.lookup(output.prompt_token_ids) == len(output.prompt_token_ids) - 1
    assert await engine.lookup(output.prompt_token_ids, cache_salt="another") == 0
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        await engine.lookup([10**9])
    assert await engine.reset_prefix_cache() > 0
    assert (await whole(engine.chat(messages, GREEDY))).num_cached_tokens == 0


async def test_a_timeout_ends_the_answer(served: Any) -> None:
    engine, _, runner = served
    execute = runner.execute

    def slowly(batch: object) -> object:
        time.sleep(0.01)
        return execute(batch)

    runner.execute = slowly
    output = await whole(engine.generate("abc", ENDLESS, timeout=0.6))
    assert output.outputs[0].finish_reason == "timeout" and output.outputs[0].token_ids


async def test_a_native_failure_fails_everybody_who_waits_and_health_says_so(make_assembly: MakeAssembly) -> None:
    assembly, runner = make_assembly(blocks=400, max_num_seqs=2)
    engine = AsyncEngine.from_assembly(assembly)
    runner.fail_at = 5
    results = await asyncio.gather(
        *(whole(engine.generate("abc" * (i + 1), GREEDY)) for i in range(6)), return_exceptions=True
    )
    for result in results:
        assert isinstance(result, EngineDeadError) and "on fire" in str(result)
        assert isinstance(result.__cause__, MemoryError)
    assert not engine.is_healthy and isinstance(engine.failure, EngineDeadError)
    with pytest.raises(EngineDeadError, match="on fire"):
        await whole(engine.generate("abc", GREEDY))
    with pytest.raises(EngineDeadError, match="on fire"):
        await engine.stats()
    group = await engine.accept("abc", GREEDY)
    with pytest.raises(EngineDeadError, match="on fire"):
        await anext(engine.stream(group))
    stats, gauges, _ = await engine.report()
    assert stats.num_requests > 0 and gauges.num_active_blocks == 0, "what it did before is told all the same"
    assembly.engine.check_idle()
    engine.shutdown()


async def test_a_failure_of_the_thread_itself_fails_everybody_too(
    make_assembly: MakeAssembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly, _ = make_assembly(max_model_len=180)
    engine = AsyncEngine.from_assembly(assembly)
    task = asyncio.create_task(whole(engine.generate("abc", ENDLESS)))
    await until(lambda: assembly.engine.num_running == 1)

    def die() -> None:
        raise SystemExit("the thread was shot")

    monkeypatch.setattr(assembly.engine, "step", die)
    with pytest.raises(EngineDeadError, match="shot"):
        await task
    assert not engine.is_healthy
    engine.shutdown()


async def test_shutdown_fails_what_is_unfinished(make_assembly: MakeAssembly) -> None:
    assembly, _ = make_assembly(max_model_len=180)
    engine = AsyncEngine.from_assembly(assembly)
    task = asyncio.create_task(whole(engine.generate("abc", ENDLESS)))
    await until(lambda: assembly.engine.num_running == 1)
    await asyncio.to_thread(engine.shutdown)
    with pytest.raises(EngineDeadError, match="shut down"):
        await task
    with pytest.raises(EngineDeadError, match="shut down"):
        await whole(engine.generate("abc", GREEDY))
    assembly.engine.check_idle()
    engine.shutdown()


def test_consumers_on_several_event_loops_share_one_engine(served: Any) -> None:
    engine, core, _ = served
    texts: list[str] = []

    def loop() -> None:
        texts.append(asyncio.run(whole(engine.generate("abc", GREEDY))).outputs[0].text)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(texts) == 4 and len(set(texts)) == 1
    core.check_idle()


def test_requests_of_an_event_loop_that_is_gone_are_aborted(served: Any) -> None:
    engine, core, _ = served
    loop = asyncio.new_event_loop()
    outputs = engine.generate("abc", ENDLESS)
    loop.run_until_complete(anext(outputs))
    loop.close()
    deadline = time.monotonic() + 10
    while core.has_unfinished and time.monotonic() < deadline:
        time.sleep(0.002)
    core.check_idle()
    assert engine.is_healthy
