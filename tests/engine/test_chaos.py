"""Threads and tasks that come, go, abort, time out and interrupt as they please: what is whole is what it is alone.

On the real native core with a small random model; requests are seeded, so that every answer is known beforehand.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest
from exactness_lab import small_lab

from octavo.async_engine import AsyncEngine
from octavo.engine.assemble import Assembly
from octavo.engine.outputs import RequestOutput
from octavo.engine.sampling_params import SamplingParams
from octavo.llm import LLM
from octavo.model.runner import ModelRunner

SHORT, LONG = 2.0, 300.0
seconds = pytest.mark.parametrize(
    "seconds", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)]
)


def start(**config: Any) -> Assembly:
    engine = small_lab("gqa", "generic").start(threads=1, **config).engine
    assert isinstance(engine._runner, ModelRunner)
    engine._runner.__class__ = ModelRunner  # records nothing: an aborted request may be drawn again
    return Assembly(engine, None, None, None)  # type: ignore[arg-type]


Content = tuple[Any, ...]


def content(output: RequestOutput) -> Content:
    answers = [(a.token_ids, a.logprobs, a.finish_reason) for a in output.outputs]
    return answers, output.prompt_logprobs


def joined(increments: list[RequestOutput]) -> RequestOutput:
    whole, *rest = increments
    for increment in rest:
        whole.extend(increment)
    return whole


class Requests:
    """Forty requests with shared prefixes, and what each answers alone, uncached and undisturbed."""

    def __init__(self) -> None:
        rng = random.Random(4)
        shared = [rng.randrange(331) for _ in range(60)]
        self.prompts = [
            shared[: rng.randrange(60)] + [rng.randrange(331) for _ in range(rng.choice([1, 5, 17, 40]))]
            for _ in range(40)
        ]
        self.params = [
            SamplingParams(
                n=rng.choice([1, 1, 2, 4]),
                seed=seed,
                temperature=rng.choice([0.0, 1.0]),
                max_tokens=rng.randrange(1, 30),
                logprobs=rng.choice([None, 2]),
                prompt_logprobs=rng.choice([None, None, None, 1]),
                frequency_penalty=rng.choice([0.0, 0.0, 1.5]),
                logit_bias=rng.choice([{}, {3: 5.0, 4: -100.0}]),
                use_cache=rng.random() < 0.93,
            )
            for seed in range(40)
        ]
        alone = LLM.from_assembly(start(num_blocks=60, enable_prefix_caching=False, max_num_seqs=1))
        self.expected = [content(alone.generate(p, s)[0]) for p, s in zip(self.prompts, self.params, strict=True)]


@pytest.fixture(scope="module")
def requests() -> Requests:
    return Requests()


@seconds
@pytest.mark.parametrize("budget", [5, 64])
@pytest.mark.parametrize("blocks", [18, 200])
def test_threads_of_one_llm(requests: Requests, seconds: float, budget: int, blocks: int) -> None:
    llm = LLM.from_assembly(start(num_blocks=blocks, max_num_batched_tokens=budget, max_num_seqs=8))
    end, wrong, done = time.monotonic() + seconds, list[str](), Counter[str]()

    def whole(rng: random.Random) -> None:
        chosen = [rng.randrange(40) for _ in range(rng.randrange(1, 5))]
        outputs = llm.generate([requests.prompts[i] for i in chosen], [requests.params[i] for i in chosen])
        wrong.extend(f"request {i}" for i, o in zip(chosen, outputs, strict=True) if content(o) != requests.expected[i])

    def streamed(rng: random.Random) -> None:
        i = rng.randrange(40)
        if content(joined(list(llm.stream(requests.prompts[i], requests.params[i])))) != requests.expected[i]:
            wrong.append(f"streamed request {i}")

    def dropped(rng: random.Random) -> None:
        i = rng.randrange(40)
        next(llm.stream(requests.prompts[i], requests.params[i]))

    def late(rng: random.Random) -> None:
        i = rng.randrange(40)
        llm.generate(requests.prompts[i], requests.params[i], timeout=0.003)

    def reset(rng: random.Random) -> None:
        llm.reset_prefix_cache()
        llm.stats()
        gc.collect()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end:
            action = rng.choice([whole, whole, streamed, streamed, dropped, late, reset])
            try:
                action(rng)
            except Exception as error:
                wrong.append(f"{action.__name__}: {error!r}")
                return
            done[action.__name__] += 1

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=seconds + 120)
        assert not thread.is_alive(), "a thread waits for ever"
    assert not wrong and done["whole"] and done["streamed"]
    llm.engine.check_idle()


@seconds
def test_tasks_of_one_async_engine(requests: Requests, seconds: float) -> None:
    rng = random.Random(9)
    assembly = start(num_blocks=30, max_num_batched_tokens=40, max_num_seqs=16)
    engine, done = AsyncEngine.from_assembly(assembly), Counter[str]()

    async def consume(i: int, name: str) -> None:
        drop = rng.choice([None, None, None, rng.randrange(4)])
        timeout = rng.choice([None] * 9 + [0.01])
        increments: list[RequestOutput] = []
        outputs = engine.generate(requests.prompts[i], requests.params[i], name, priority=i % 3, timeout=timeout)
        async for output in outputs:
            increments.append(output)
            if len(increments) == drop:
                return  # the generator is forgotten, not closed
        output = joined(increments)
        if not {a.finish_reason for a in output.outputs} & {"abort", "timeout"}:
            assert content(output) == requests.expected[i], f"request {i}"
            done["whole"] += 1

    async def storm(tasks: list[asyncio.Task[None]]) -> None:
        for task in rng.sample(tasks, 21):
            await asyncio.sleep(rng.random() * 0.003)
            task.cancel()
            await engine.abort(str(rng.randrange(64)))
            if rng.random() < 0.1:
                await engine.reset_prefix_cache()

    async def rounds() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tasks = [asyncio.create_task(consume(rng.randrange(40), str(name))) for name in range(64)]
            await storm(tasks)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert result is None or isinstance(result, asyncio.CancelledError), result
            gc.collect()
            while assembly.engine.has_unfinished:
                await asyncio.sleep(0.001)
            await engine.stats()  # whatever the last step left to do is done
            assembly.engine.check_idle()

    try:
        asyncio.run(asyncio.wait_for(rounds(), seconds + 120))
    finally:
        engine.shutdown()
    assert done["whole"]


@seconds
def test_ctrl_c_at_any_moment(requests: Requests, seconds: float) -> None:
    llm = LLM.from_assembly(start(num_blocks=60))
    rng, over, interrupts = random.Random(2), threading.Event(), 0
    armed = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal armed
        if armed:  # nothing but what is tested may be interrupted
            armed = False
            raise KeyboardInterrupt

    def shoot() -> None:
        while not over.wait(random.random() * 0.004):
            os.kill(os.getpid(), signal.SIGINT)

    def ask(i: int) -> None:
        if rng.random() < 0.5:
            output = llm.generate(requests.prompts[i], requests.params[i])[0]
        else:
            output = joined(list(llm.stream(requests.prompts[i], requests.params[i])))
        assert content(output) == requests.expected[i]

    previous = signal.signal(signal.SIGINT, interrupt)
    shooter, end = threading.Thread(target=shoot), time.monotonic() + seconds
    try:
        shooter.start()
        while time.monotonic() < end:
            try:
                armed = True
                ask(rng.randrange(40))
                armed = False
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        armed = False
        over.set()
        shooter.join()
        signal.signal(signal.SIGINT, previous)
    assert interrupts > 10
    llm.engine.check_idle()
    assert content(llm.generate(requests.prompts[0], requests.params[0])[0]) == requests.expected[0]
