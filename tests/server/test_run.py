"""Listening and ending, inside of one process; `tests/cli/test_serve.py` does it with real signals."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx
import pytest
from live_server import LiveServer, live_server
from raw_http import Ask, Exchange

from octavo.errors import ConfigError
from octavo.server import run
from octavo.server.app import create_app
from octavo.server.config import ServerConfig


def test_an_address_is_bound_before_anybody_can_reach_it_and_has_one_server(live: LiveServer) -> None:
    with run.listen(ServerConfig(port=0)) as listener:
        address = listener.getsockname()
        assert run.url_of(listener) == f"http://127.0.0.1:{address[1]}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with run.listen(ServerConfig(port=address[1])) as late:
            listener.listen()
            with pytest.raises(ConfigError, match="in use"):
                run.serve(create_app(live.engine), late, lambda: None)
        with pytest.raises(ConfigError, match="in use"):
            run.listen(ServerConfig(port=address[1]))


def test_ipv6_addresses_are_written_in_brackets() -> None:
    try:
        listener = run.listen(ServerConfig(host="::1", port=0))
    except ConfigError:
        return  # this machine has none
    with listener:
        assert run.url_of(listener).startswith("http://[::1]:")


@pytest.mark.parametrize("host", ["256.0.0.1", "no.such.host.invalid", "x" * 300, "a\u0300..b"])
def test_what_is_no_address_is_a_readable_error(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        run.listen(ServerConfig(host=host))


def test_while_it_ends_it_is_not_ready_and_finishes_what_it_has(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(shutdown_timeout=1)) as server:
        server.app.state.octavo.is_ending = True
        ready = httpx.get(f"{server.url}/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "ending"})
        assert httpx.get(f"{server.url}/health").status_code == 200


async def test_the_end_does_not_wait_for_requests_that_never_get_whole(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_GRACE", 0.2)
    ask = Ask("/v1/completions", {"model": live.model, "prompt": "Hi"})
    with live_server(live.engine, ServerConfig(shutdown_timeout=30)) as server:
        exchange = await Exchange.begin(server.url, ask, -3)
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        server.server.should_exit = True
        await asyncio.to_thread(until_closed, server)
    assert time.monotonic() - begun < 10
    exchange.hang_up()


async def test_who_is_ended_is_told_and_nothing_is_begun_any_more(live: LiveServer) -> None:
    body = {"model": live.model, "prompt": "Hi", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with live_server(live.engine, ServerConfig(shutdown_timeout=30)) as server:
        exchange = await Exchange.begin(server.url, Ask("/v1/completions", body))
        assert (await exchange.head())[0] == 200
        await asyncio.to_thread(server.run, server.app.state.octavo.service.end_all())
        *_, last = [frame async for frame in exchange.frames()]
        assert "shutting down" in last["error"]["message"]
        exchange.hang_up()
        refused = await asyncio.to_thread(httpx.post, f"{server.openai_url}/completions", json=body)
        assert refused.status_code == 503
        await asyncio.to_thread(server.until_idle)


def until_closed(server: LiveServer) -> None:
    end = time.monotonic() + 20
    while server.server.server_state.connections and time.monotonic() < end:
        time.sleep(0.02)
