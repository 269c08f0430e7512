"""Who else is served changes nothing: not what is answered, and no more than one chunk of when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer, served_model
from plain_answers import plain_answer
from raw_http import Ask, Exchange, answer

from octavo.engine.engine import Engine
from octavo.model.runner import ForwardBatch

CHUNK = 64
LONG = "A long story that nobody has read to its end. " * 100


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[LiveServer]:
    with served_model(smollm2_gguf, max_num_seqs=7, max_num_batched_tokens=CHUNK) as live:
        yield live


@contextmanager
def before_each_step(server: LiveServer, look: Callable[[Engine, ForwardBatch], None]) -> Iterator[None]:
    """Show every batch to ``look``, on the engine's thread, before it is computed."""
    engine = server.engine.assembly.engine
    runner: Any = engine._runner

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def execute(self, batch: ForwardBatch) -> Any:
            look(engine, batch)
            return runner.execute(batch)

    engine._runner = Watched()
    try:
        yield
    finally:
        server.until_idle()
        engine._runner = runner


class Gate:
    """Stops the engine before the first step for which ``when`` holds, until it is opened."""

    def __init__(self, when: Callable[[Engine], bool]) -> None:
        self._when = when
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, engine: Engine, batch: ForwardBatch) -> None:
        if not self._opened.is_set() and self._when(engine):
            self._reached.set()
            assert self._opened.wait(60)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 60), "it never came to that"

    def open(self) -> None:
        self._opened.set()


def story(server: LiveServer, prompt: str, max_tokens: int) -> Ask:
    body = {"model": server.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return Ask("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})


def decoding(engine: Engine) -> int:
    return sum(len(request.token_ids) > request.num_prompt_tokens for request in engine.scheduler.running)


async def until(condition: Callable[[], bool], within: float = 30) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_of_eight_one_waiting_one_prefilling_and_one_decoding_leave_and_five_get_what_they_get_alone(
    server: LiveServer,
) -> None:
    kept = [story(server, f"The tale of the {animal} begins", 40) for animal in ("fox", "owl", "bear", "cat", "wolf")]
    alone = [asyncio.run(answer(server.url, ask)) for ask in kept]
    all_decode = Gate(lambda engine: decoding(engine) == 6)
    all_states = Gate(
        lambda engine: (
            bool(engine.scheduler.waiting)
            and any(0 < r.num_computed_tokens < r.num_prompt_tokens - CHUNK for r in engine.scheduler.running)
        )
    )

    def gates(engine: Engine, batch: ForwardBatch) -> None:
        all_decode(engine, batch)
        all_states(engine, batch)

    async def scene() -> list[Any]:
        answers = [asyncio.create_task(answer(server.url, ask)) for ask in kept]
        leaving = [await Exchange.begin(server.url, story(server, "Meanwhile", 400))]
        await all_decode.reached()
        orders = server.engine._thread._orders
        for number, ask in enumerate((story(server, LONG, 20), story(server, "And then", 20)), start=1):
            leaving.append(await Exchange.begin(server.url, ask))
            await until(lambda number=number: orders.qsize() == number)  # type: ignore[misc]
        all_decode.open()
        await all_states.reached()
        for exchange in leaving:
            exchange.hang_up()
        await until(lambda: server.app.state.octavo.service.admission.num_under_way == len(kept))
        all_states.open()
        return await asyncio.gather(*answers)

    before = server.run(server.engine.stats()).num_finished["abort"]
    with before_each_step(server, gates):
        answers = asyncio.run(scene())
    for ask, lone, together in zip(kept, alone, answers, strict=True):
        assert plain_answer(ask.path, together) == plain_answer(ask.path, lone)
    assert server.run(server.engine.stats()).num_finished["abort"] - before == 3
    server.check_idle()


def test_a_long_prompt_delays_nobody_s_next_token_by_more_than_one_chunk(server: LiveServer) -> None:
    """While it is prefilled, every step takes a chunk at most and gives every stream its next token."""
    streams = [story(server, f"Verse {number}:", 120) for number in range(4)]
    arrived = Gate(lambda engine: decoding(engine) == len(streams))
    steps: list[tuple[int, Any]] = []

    def look(engine: Engine, batch: ForwardBatch) -> None:
        arrived(engine, batch)
        steps.append((decoding(engine), np.diff(batch.query_start_loc)))

    async def scene() -> None:
        answers = [asyncio.create_task(answer(server.url, ask)) for ask in streams]
        await arrived.reached()
        answers.append(asyncio.create_task(answer(server.url, story(server, LONG + "Of another.", 2))))
        await until(lambda: server.engine._thread._orders.qsize() == 1)
        arrived.open()
        await asyncio.gather(*answers)

    with before_each_step(server, look):
        asyncio.run(scene())
    shared = [lengths for running, lengths in steps if running == len(streams) and lengths.max() > 1]
    assert len(shared) > 10
    for lengths in shared:
        assert lengths.sum() <= CHUNK
        assert sorted(lengths)[:-1] == [1] * len(streams)


def test_prompt_logprobs_asked_for_twice_with_traffic_between_are_whole_and_equal(server: LiveServer) -> None:
    """Asked for after others have taken the blocks, and again when the prompt is cached."""
    body = {"model": server.model, "prompt": "One, two, three, four, five. " * 8, "max_tokens": 1, "temperature": 0}
    asked = {**body, "echo": True, "logprobs": 2}

    def scored() -> dict[str, Any]:
        reply = httpx.post(f"{server.openai_url}/completions", json=asked, timeout=60).raise_for_status().json()
        assert len(reply["choices"][0]["logprobs"]["token_logprobs"]) == reply["usage"]["total_tokens"]
        assert None not in reply["choices"][0]["logprobs"]["token_logprobs"][1:]
        return dict(reply["choices"][0])

    first = scored()
    for number in range(3):
        httpx.post(f"{server.openai_url}/completions", json={**body, "prompt": f"{number} {LONG}"}, timeout=60)
    httpx.post(f"{server.openai_url}/completions", json=body, timeout=60).raise_for_status()
    assert scored() == first
