"""Overload: who comes too late is told at once, what runs is never dropped, whoever leaves gives his place back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from held_engine import held
from live_server import LiveServer, live_server, served_model
from raw_http import Ask, Exchange

from octavo.engine.sampling_params import SamplingParams
from octavo.server.calls import Call, Caller
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError
from octavo.server.keys import Key, KeyRing
from octavo.server.limits import Admission
from octavo.server.requests import PlainRequest

SEATS, QUEUE = 2, 3
PROMPT = "Once upon a time there was a"


@pytest.fixture(scope="module")
def small(smollm2_gguf: Path) -> Iterator[LiveServer]:
    """Two seats, and a queue of three."""
    config = ServerConfig(max_queue=QUEUE, shutdown_timeout=1)
    with served_model(smollm2_gguf, config, max_num_seqs=SEATS, kv_memory="32MiB", max_model_len=256) as server:
        yield server


def completion(server: LiveServer, **fields: Any) -> httpx.Response:
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **fields}
    headers = fields.pop("headers", None)
    body.pop("headers", None)
    return httpx.post(f"{server.openai_url}/completions", json=body, headers=headers, timeout=60)


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it never came to that")


def under_way(server: LiveServer) -> int:
    count: int = server.app.state.octavo.service.admission.num_under_way
    return count


DIALECTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
}


def test_a_full_server_refuses_in_every_dialect_and_finishes_what_it_has(small: LiveServer) -> None:
    wanted = completion(small).json()["choices"]
    with ThreadPoolExecutor(SEATS + QUEUE) as clients, held(small.engine):
        replies: list[Future[httpx.Response]] = [clients.submit(completion, small) for _ in range(SEATS + QUEUE)]
        until(lambda: under_way(small) == SEATS + QUEUE)
        for path, body in DIALECTS.items():
            for stream in (False, True):
                asked = {"model": small.model, "stream": stream, **body}
                refused = httpx.post(f"{small.url}{path}", json=asked, timeout=10)
                assert refused.status_code == 429, path
                assert refused.headers["retry-after"] == "1"
                assert refused.headers["content-type"] == "application/json"
                error = refused.json()["error"]
                assert "5 answers are under way" in error["message"] and "takes 5 at once" in error["message"]
                if path == "/v1/messages":
                    assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")
                else:
                    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert under_way(small) == SEATS + QUEUE
    for reply in replies:
        assert reply.result().status_code == 200
        assert reply.result().json()["choices"] == wanted
    small.until_idle()
    assert completion(small).status_code == 200


def test_what_takes_no_place_is_answered_by_a_full_server(small: LiveServer) -> None:
    with ThreadPoolExecutor(SEATS + QUEUE) as clients, held(small.engine):
        replies = [clients.submit(completion, small) for _ in range(SEATS + QUEUE)]
        until(lambda: under_way(small) == SEATS + QUEUE)
        for path in ("/health", "/ready", "/v1/models", "/metrics"):
            assert httpx.get(f"{small.url}{path}", timeout=10).status_code == 200
        body = {"model": small.model, "messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.post(f"{small.url}/v1/messages/count_tokens", json=body, timeout=10).status_code == 200
    assert [reply.result().status_code for reply in replies] == [200] * 5


async def test_whoever_hangs_up_in_the_queue_gives_place_and_blocks_back(small: LiveServer) -> None:
    """Streamed or not, before the engine has heard of it and after."""
    body = {"model": small.model, "prompt": PROMPT, "max_tokens": 100}
    with held(small.engine):
        exchanges = [
            await Exchange.begin(small.url, Ask("/v1/completions", {**body, "stream": bool(number % 2)}))
            for number in range(SEATS + QUEUE)
        ]
        await asyncio.to_thread(until, lambda: under_way(small) == SEATS + QUEUE)
        for exchange in exchanges:
            exchange.hang_up()
        await asyncio.to_thread(until, lambda: under_way(small) == 0)
        assert small.app.state.octavo.service._under_way == set()
    await asyncio.to_thread(small.until_idle)
    small.check_idle()
    assert (await asyncio.to_thread(completion, small)).status_code == 200


def test_a_start_that_is_cancelled_at_any_moment_frees_its_place(small: LiveServer) -> None:
    service = small.app.state.octavo.service

    async def cancelled(after: float) -> Call:
        call = Call("/v1/completions")
        request = PlainRequest(prompt=PROMPT, sampling=SamplingParams(max_tokens=50))
        start = asyncio.create_task(service.answer(call, "m", request))
        await asyncio.sleep(after)
        start.cancel()
        await asyncio.wait({start})
        await call.close()
        return call

    for after in (0, 0.001, 0.005, 0.02, 0.05):
        call = small.run(cancelled(after))
        assert under_way(small) == 0
        assert all(entry.outcomes in (["abort"], ["length"]) for entry in call.entries)
    small.until_idle()
    small.check_idle()


def test_a_tenant_has_a_share_and_others_are_served_beside_it(live: LiveServer) -> None:
    keys = KeyRing([Key.of("a", "alice"), Key.of("b", "bob")], b"s" * 32)
    config = ServerConfig(max_concurrency=2, shutdown_timeout=1)
    with live_server(live.engine, config, keys=keys) as server, ThreadPoolExecutor(3) as clients:
        with held(live.engine):
            alice = clients.submit(completion, server, n=2, headers={"x-api-key": "a"})
            until(lambda: under_way(server) == 2)
            refused = completion(server, headers={"x-api-key": "a"})
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert "2 answers of yours are under way" in refused.json()["error"]["message"]
            bob = clients.submit(completion, server, headers={"x-api-key": "b"})
            until(lambda: under_way(server) == 3)
        assert alice.result().status_code == bob.result().status_code == 200
        assert completion(server, headers={"x-api-key": "a"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_a_deadline_counts_from_arrival_also_while_waiting(live: LiveServer, path: str) -> None:
    """Nothing was sent yet, so it is a status of its own, streamed or not."""
    with live_server(live.engine, ServerConfig(timeout=0.2, shutdown_timeout=1)) as server:
        for stream in (False, True):
            body = {"model": server.model, "stream": stream, **DIALECTS[path]}
            with ThreadPoolExecutor(1) as client:
                with held(live.engine):
                    reply = client.submit(httpx.post, f"{server.url}{path}", json=body, timeout=60)
                    until(lambda: under_way(server) == 1)
                    threading.Event().wait(0.3)
                assert reply.result().status_code == 504
            kind = reply.result().json()["error"]["type"]
            assert kind == ("timeout_error" if path == "/v1/messages" else "server_error")
        server.until_idle()
        ledger = server.app.state.octavo.service.ledger
        assert ledger.outcomes == {"timeout": 2}


def test_a_deadline_in_the_midst_of_a_stream_is_its_last_event(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(timeout=0.5, shutdown_timeout=1)) as server:
        long = {"model": server.model, "max_tokens": 1800, "temperature": 0, "stream": True}
        body = {**long, "prompt": PROMPT, "ignore_eos": True}
        text = httpx.post(f"{server.openai_url}/completions", json=body, timeout=60).text
        *_, last, end = text.split("\n\n")
        assert end == "" and '"error"' in last and "longer than this server allows" in last
        server.until_idle()
        assert server.app.state.octavo.service.ledger.outcomes["timeout"] == 1


def test_rendering_that_outlasts_the_deadline_begins_nothing(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(live.engine, ServerConfig(timeout=0.05, shutdown_timeout=1)) as server:
        service = server.app.state.octavo.service
        prepare = service.preparation.prepare

        def slowly(request: Any) -> Any:
            threading.Event().wait(0.1)
            return prepare(request)

        monkeypatch.setattr(service.preparation, "prepare", slowly)
        body = {"model": server.model, **DIALECTS["/v1/chat/completions"]}
        assert httpx.post(f"{server.openai_url}/chat/completions", json=body).status_code == 504
        assert under_way(server) == 0


def test_long_requests_take_turns_and_short_ones_wait_for_none_of_them(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_server(live.engine, ServerConfig(shutdown_timeout=1)) as server, ThreadPoolExecutor(8) as clients:
        service = server.app.state.octavo.service
        prepare, may_go, most = service.preparation.prepare, threading.Event(), [0, 0]

        def held(request: Any) -> Any:
            if len(request.messages[0]["content"]) > 1000:
                most[0] += 1
                most[1] = max(most)
                assert may_go.wait(20)
                most[0] -= 1
            return prepare(request)

        def ask(content: str) -> int:
            body = {"model": server.model, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
            return httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60).status_code

        monkeypatch.setattr(service.preparation, "prepare", held)
        long = [clients.submit(ask, "word " * 55_000) for _ in range(8)]
        while under_way(server) < len(long):
            time.sleep(0.01)
        assert ask("Hi") == 200
        may_go.set()
        assert {each.result() for each in long} == {400} and most == [0, 1]


def test_places_are_counted_by_answers_and_given_back_once() -> None:
    admission = Admission(max_running=2, max_queue=1, max_concurrency=2)
    alice, bob = Caller("alice"), Caller("bob")
    leave = admission.admit(alice, 2)
    with pytest.raises(ApiError, match="of yours"):
        admission.admit(alice, 1)
    admission.admit(bob, 1)
    with pytest.raises(ApiError, match="this server takes 3"):
        admission.admit(Caller("eve"), 1)
    leave()
    assert admission.num_under_way == 1
    admission.admit(alice, 2)


def test_what_never_fits_is_no_matter_of_waiting() -> None:
    """A client would try again for ever."""
    for limit, most in ((2, 2), (None, 3)):
        admission = Admission(max_running=2, max_queue=1, max_concurrency=limit)
        with pytest.raises(ApiError, match=f"at most {most} at once") as refused:
            admission.admit(Caller(), most + 1)
        assert (refused.value.kind.value, refused.value.param, refused.value.retry_after) == (400, "n", None)
        admission.admit(Caller(), most)
