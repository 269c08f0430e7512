"""Many clients at once, of every dialect, of whom a third hang up: the others' answers are not changed by one bit, and
nothing is held afterwards."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import LiveServer, served_model
from plain_answers import plain_answer
from raw_http import Ask, Exchange, answer

TALES = "Once upon a time a king had three daughters, and the youngest of them spoke with the birds. "
CLIENTS = 64
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_blocks_active")


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[LiveServer]:
    """With fewer seats and fewer blocks than its clients want, so that some wait and some are preempted."""
    with served_model(smollm2_gguf, kv_memory="64MiB", max_num_seqs=24, max_num_batched_tokens=256) as live:
        yield live


def asks(model: str, rng: random.Random, count: int) -> list[Ask]:
    """Requests of every dialect, short and long, with what changes how an answer is made."""
    kinds = (chat, completion, message, response)
    return [kinds[number % len(kinds)](model, rng, number) for number in range(count)]


def chat(model: str, rng: random.Random, number: int) -> Ask:
    extras: list[dict[str, Any]] = [
        {"temperature": 0.9, "seed": number, "n": 2, "stop": ["\n"]},
        {"temperature": 0, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0, "tools": [TOOL], "tool_choice": "required"},
        {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    ]
    body = {"messages": conversation(rng), "max_completion_tokens": rng.randint(4, 24), **extras[number // 4 % 4]}
    return Ask("/v1/chat/completions", {"model": model, **body})


def completion(model: str, rng: random.Random, number: int) -> Ask:
    extras: list[dict[str, Any]] = [
        {"temperature": 0, "logprobs": 1},
        {"temperature": 1.0, "seed": number, "n": 3},
        {"temperature": 0, "stop": ["the", "king and"]},
    ]
    body = {"prompt": passage(rng), "max_tokens": rng.randint(4, 24), **extras[number // 4 % 3]}
    return Ask("/v1/completions", {"model": model, **body})


def message(model: str, rng: random.Random, number: int) -> Ask:
    tool = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
    extras: list[dict[str, Any]] = [
        {},
        {"stop_sequences": ["the", "king and"]},
        {"tools": [tool], "tool_choice": {"type": "any"}},
    ]
    body = {
        "messages": conversation(rng),
        "max_tokens": rng.randint(4, 24),
        "temperature": 0,
        **extras[number // 4 % 3],
    }
    return Ask("/v1/messages", {"model": model, **body}, {"anthropic-version": "2023-06-01"})


def response(model: str, rng: random.Random, number: int) -> Ask:
    shape = {"type": "json_schema", "name": "s", "schema": SCHEMA}
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
    extras: list[dict[str, Any]] = [
        {},
        {"text": {"format": shape}},
        {"tools": [tool], "tool_choice": "required", "store": False},
    ]
    body = {
        "input": passage(rng),
        "max_output_tokens": rng.randint(16, 24),
        "temperature": 0,
        **extras[number // 4 % 3],
    }
    return Ask("/v1/responses", {"model": model, **body})


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def passage(rng: random.Random) -> str:
    """From a few tokens to many blocks; some share their beginning."""
    return f"{TALES * rng.choice([0, 1, 1, 4, 16])}Chapter {rng.randint(1, 10**6)}. The"


def conversation(rng: random.Random) -> list[dict[str, str]]:
    turns = [{"role": "user", "content": passage(rng)}]
    for _ in range(rng.choice([0, 0, 1, 2])):
        turns += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": passage(rng)}]
    return turns


Leave = Callable[[str, Ask, random.Random], Any]
"""A client that hangs up."""


async def leave_before_the_body_is_whole(url: str, ask: Ask, rng: random.Random) -> None:
    exchange = await Exchange.begin(url, ask.streamed(), -rng.randint(1, 40))
    await asyncio.sleep(rng.uniform(0, 0.2))
    exchange.hang_up()


async def leave_before_the_first_byte(url: str, ask: Ask, rng: random.Random) -> None:
    exchange = await Exchange.begin(url, ask.streamed())
    await asyncio.sleep(rng.choice([0, rng.uniform(0, 0.02), rng.uniform(0, 1)]))
    exchange.hang_up()


async def leave_between_frames(url: str, ask: Ask, rng: random.Random) -> None:
    exchange = await Exchange.begin(url, ask.streamed())
    status, _ = await exchange.head()
    assert status == 200
    left = rng.randint(0, 6)
    async for _ in exchange.frames():
        left -= 1
        if left <= 0:
            break
    await asyncio.sleep(rng.choice([0, rng.uniform(0, 0.1)]))
    exchange.hang_up()


async def leave_without_streaming(url: str, ask: Ask, rng: random.Random) -> None:
    exchange = await Exchange.begin(url, ask)
    await asyncio.sleep(rng.uniform(0, 1))
    exchange.hang_up()


LEAVING: tuple[Leave, ...] = (
    leave_before_the_body_is_whole,
    leave_before_the_first_byte,
    leave_between_frames,
    leave_without_streaming,
)


async def crowd(url: str, wanted: list[Ask], leaving: list[Ask], rng: random.Random) -> list[Any]:
    """Everybody at once; the answers to ``wanted``, in order."""

    async def later(delay: float, work: Any) -> Any:
        await asyncio.sleep(delay)
        return await work

    leavers = [LEAVING[number % len(LEAVING)](url, ask, rng) for number, ask in enumerate(leaving)]
    everybody = [*(answer(url, ask) for ask in wanted), *leavers]
    done = await asyncio.gather(*(later(rng.uniform(0, 0.5), work) for work in everybody))
    return list(done[: len(wanted)])


def load(server: LiveServer, seed: int) -> None:
    """One third of the clients hangs up. The others get, streamed, what each would get alone and unstreamed."""
    rng = random.Random(seed)
    distinct = asks(server.model, rng, CLIENTS // 3)
    leaving = asks(server.model, rng, CLIENTS // 3)
    alone = [plain_answer(ask.path, asyncio.run(answer(server.url, ask))) for ask in distinct]
    server.run(server.engine.reset_prefix_cache())
    gone_before = server.run(server.engine.stats()).num_finished["abort"]
    wanted = [distinct[number % len(distinct)].streamed() for number in range(CLIENTS - len(leaving))]

    answers = asyncio.run(crowd(server.url, wanted, leaving, rng))

    for number, (ask, streamed) in enumerate(zip(wanted, answers, strict=True)):
        assert plain_answer(ask.path, streamed) == alone[number % len(distinct)], ask
    left_nothing(server)
    assert server.run(server.engine.stats()).num_finished["abort"] > gone_before


def left_nothing(server: LiveServer) -> None:
    """No seat, no block; the bookkeeping is sound; the metrics say so."""
    server.until_idle()
    server.check_idle()
    metrics = httpx.get(f"{server.url}/metrics").raise_for_status().text
    gauges = dict(re.findall(rf"^octavo_({'|'.join(GAUGES)})\S* (\S+)$", metrics, re.M))
    assert {name: float(value) for name, value in gauges.items()} == dict.fromkeys(GAUGES, 0.0)


def test_64_clients_of_whom_a_third_hang_up_leave_nothing_and_change_no_answer(server: LiveServer) -> None:
    load(server, seed=5)


def test_clients_that_hang_up_while_they_wait_in_the_queue_leave_it(server: LiveServer) -> None:
    """Three times as many as there are seats; those who stay are answered, in spite of all that waited before them."""
    rng = random.Random(6)
    body = {"model": server.model, "max_tokens": 4, "temperature": 0, "messages": conversation(rng)}
    ask = Ask("/v1/messages", body)
    alone = plain_answer(ask.path, asyncio.run(answer(server.url, ask)))

    async def scene() -> list[Any]:
        waiting = [await Exchange.begin(server.url, message(server.model, rng, number)) for number in range(72)]
        staying = [asyncio.create_task(answer(server.url, ask)) for _ in range(4)]
        while (await asyncio.to_thread(server.run, server.engine.gauges())).num_waiting < 16:
            await asyncio.sleep(0.002)
        for exchange in waiting:
            exchange.hang_up()
        return await asyncio.gather(*staying)

    for answered in asyncio.run(scene()):
        assert plain_answer(ask.path, answered) == alone
    left_nothing(server)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_any_64_clients_leave_nothing_and_change_no_answer(server: LiveServer, seed: int) -> None:
    load(server, seed)
