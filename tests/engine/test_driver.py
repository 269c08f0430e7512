"""Threads that share an engine which has none of its own: nobody starves, nothing stays behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.sampling_params import SamplingParams
from octavo.errors import EngineDeadError
from octavo.llm import LLM

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
MakeAssembly = Callable[..., tuple[Any, Any]]


@pytest.fixture
def slow(make_assembly: MakeAssembly) -> tuple[LLM, Any]:
    """An LLM whose steps take some milliseconds, spent outside of Python like the native core's."""
    assembly, runner = make_assembly(blocks=400, max_model_len=120)
    execute = runner.execute

    def slowly(batch: object) -> object:
        time.sleep(0.004)
        return execute(batch)

    runner.execute = slowly
    return LLM.from_assembly(assembly), runner


def in_threads(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread never got its answer"


def test_no_thread_starves_while_another_takes_step_after_step(slow: tuple[LLM, Any]) -> None:
    llm, runner = slow
    late: list[int] = []

    def stream(prompt: str) -> None:
        taken = 0
        for increment in llm.stream(prompt, ENDLESS):
            if not taken:
                first = len(runner.batches)
            taken += len(increment.outputs[0].token_ids)
            late.append(len(runner.batches) - first - taken + 1)

    in_threads(*(lambda prompt=prompt: stream(prompt) for prompt in ("ab", "bc", "cd", "de", "ef", "fg")))
    late.sort()
    assert late[len(late) * 9 // 10] <= 3, "an output waits for its thread only as long as that takes to wake up"
    llm.engine.check_idle()


def test_a_reset_is_not_kept_waiting_by_those_who_stream(slow: tuple[LLM, Any]) -> None:
    llm, runner = slow
    stream = llm.stream("abc", ENDLESS)
    next(stream)
    waited: list[int] = []

    def reset() -> None:
        for _ in range(5):
            before = len(runner.batches)
            llm.reset_prefix_cache()
            waited.append(len(runner.batches) - before)

    in_threads(lambda: list(stream), reset)
    assert sorted(waited)[2] <= 3


def test_a_stream_dropped_while_another_thread_computes_is_aborted_when_that_is_done(
    slow: tuple[LLM, Any],
) -> None:
    llm, runner = slow
    stream = llm.stream("abc", ENDLESS)
    next(stream)
    inside, dropped = threading.Event(), threading.Event()
    execute = runner.execute

    def held(batch: object) -> object:
        inside.set()
        assert dropped.wait(30)
        return execute(batch)

    runner.execute = held
    last = threading.Thread(target=llm.generate, args=("bcd", SamplingParams(max_tokens=0)))
    last.start()
    assert inside.wait(30)
    del stream
    dropped.set()
    last.join(timeout=30)
    llm.engine.check_idle()


@pytest.mark.parametrize("moment", range(6))
def test_ctrl_c_while_a_request_is_taken_in_leaves_nothing_half_done(make_assembly: MakeAssembly, moment: int) -> None:
    llm = LLM.from_assembly(make_assembly()[0])
    alone = llm.generate("abc", SamplingParams(n=3, seed=1))[0].outputs
    new_sequence, calls = llm.engine.kv.new_sequence, []

    def interrupted(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == moment:
            signal.raise_signal(signal.SIGINT)
        return new_sequence(*args, **kwargs)

    llm.engine.kv.new_sequence = interrupted
    if moment:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["abc", "bcd"], SamplingParams(n=3))
    llm.engine.check_idle()
    assert [a.token_ids for a in llm.generate("abc", SamplingParams(n=3, seed=1))[0].outputs] == [
        a.token_ids for a in alone
    ]


def test_a_failure_reaches_every_thread_that_waits(slow: tuple[LLM, Any]) -> None:
    llm, runner = slow
    runner.fail_at = 20
    reasons: list[str] = []

    def ask(prompt: str) -> None:
        try:
            llm.generate(prompt, ENDLESS)
        except EngineDeadError as error:
            reasons.append(str(error))

    in_threads(*(lambda prompt=prompt: ask(prompt) for prompt in ("ab", "bc", "cd", "de")))
    assert len(reasons) == 4 and all("on fire" in reason for reason in reasons)
    llm.engine.check_idle()


def test_a_process_forked_off_in_the_middle_of_a_step_is_told_so(slow: tuple[LLM, Any]) -> None:
    llm, runner = slow
    execute = runner.execute
    status: list[int] = []

    def forking(batch: object) -> object:
        runner.execute = execute
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            thread = threading.Thread(target=ask_in_child, args=(llm,))
            thread.start()
            thread.join()
            os._exit(1)
        status.append(os.waitpid(child, 0)[1])
        return execute(batch)

    runner.execute = forking
    llm.generate("abc", SamplingParams(max_tokens=2))
    assert status == [0]


def ask_in_child(llm: LLM) -> None:
    try:
        llm.generate("abc", SamplingParams(max_tokens=2))
    except EngineDeadError as error:
        os._exit(0 if "forked" in str(error) else 2)
