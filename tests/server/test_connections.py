"""Slow, large and too many: what one connection may do, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from held_engine import held
from live_server import LiveServer, live_server
from raw_http import Ask, Exchange

from octavo.server.config import ServerConfig
from octavo.server.connections import MAX_HEAD

PATIENCE = 1.0


@pytest.fixture(scope="module")
def hasty(live: LiveServer) -> Iterator[LiveServer]:
    config = ServerConfig(client_timeout=PATIENCE, keep_alive=1, max_connections=4, shutdown_timeout=1)
    with live_server(live.engine, config) as server:
        yield server


def connect(server: LiveServer) -> socket.socket:
    parts = urlsplit(server.url)
    assert parts.hostname and parts.port
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.settimeout(20)
    return connection


def until_closed(connection: socket.socket) -> tuple[bytes, float]:
    """What still came, and after how many seconds it was closed."""
    begun, got = time.monotonic(), b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    connection.close()
    return got, time.monotonic() - begun


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /heal", b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: "])
def test_a_request_that_never_gets_whole_is_closed(hasty: LiveServer, sent: bytes) -> None:
    connection = connect(hasty)
    connection.sendall(sent)
    got, seconds = until_closed(connection)
    assert got == b"" and PATIENCE - 0.1 < seconds < 10


def test_headers_that_come_byte_by_byte_are_no_way_to_hold_a_connection(hasty: LiveServer) -> None:
    connection = connect(hasty)
    connection.sendall(b"GET /health HTTP/1.1\r\n")
    begun = time.monotonic()
    with pytest.raises(OSError):
        while time.monotonic() - begun < 10:
            connection.sendall(b"x: y\r\n")
            time.sleep(0.05)
    connection.close()


async def test_a_body_that_stalls_is_told_so_and_holds_nothing(hasty: LiveServer) -> None:
    ask = Ask("/v1/chat/completions", {"model": hasty.model, "messages": [{"role": "user", "content": "Hi"}]})
    exchange = await Exchange.begin(hasty.url, ask, -5)
    assert hasty.app.state.octavo.service.admission.num_under_way == 0
    status, headers = await exchange.head()
    assert status == 408
    assert b"did not arrive" in await exchange.content(headers)
    exchange.hang_up()


def test_headers_without_end_are_431(hasty: LiveServer) -> None:
    connection = connect(hasty)
    connection.sendall(b"GET /health HTTP/1.1\r\n")
    try:
        for number in range(40):
            connection.sendall(f"x-{number}: {'y' * (MAX_HEAD // 8)}\r\n".encode())
            time.sleep(0.005)
    except OSError:
        pass
    got, _ = until_closed(connection)
    assert got.startswith(b"HTTP/1.1 431 ")


def test_what_is_not_http_is_400(hasty: LiveServer) -> None:
    connection = connect(hasty)
    connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
    head, _, body = until_closed(connection)[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_idle_connection_is_kept_for_a_while_and_then_closed(hasty: LiveServer) -> None:
    connection = connect(hasty)
    for _ in range(2):
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.2)
    got, seconds = until_closed(connection)
    assert got == b"" and seconds < 10


def test_two_requests_sent_at_once_are_both_answered(hasty: LiveServer) -> None:
    connection = connect(hasty)
    request = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    connection.sendall(request * 2)
    assert until_closed(connection)[0].count(b"HTTP/1.1 200 ") == 2


async def test_half_a_next_request_does_not_end_the_answer_that_runs(hasty: LiveServer) -> None:
    body = {"model": hasty.model, "prompt": "One, two,", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    exchange = await Exchange.begin(hasty.url, Ask("/v1/completions", {**body, "stream": True}))
    assert (await exchange.head())[0] == 200
    with held(hasty.engine):
        exchange._writer.write(b"GET /version HTTP/1.1\r\n")
        await asyncio.sleep(1.5 * PATIENCE)
    assert [frame async for frame in exchange.frames()]
    exchange.hang_up()


def test_a_client_that_takes_nothing_is_cut_off(hasty: LiveServer) -> None:
    """It asks for more than sockets hold, and then reads none of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    parts = urlsplit(hasty.url)
    connection.connect((parts.hostname, parts.port))
    connection.settimeout(20)
    connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 400)
    connection.recv(1)
    end = time.monotonic() + 20
    while hasty.server.server_state.connections and time.monotonic() < end:
        time.sleep(0.05)
    assert not hasty.server.server_state.connections
    connection.close()


def test_connections_too_many_get_an_answer_and_those_that_were_there_go_on(hasty: LiveServer) -> None:
    there = [connect(hasty) for _ in range(4)]
    time.sleep(0.1)
    refused = httpx.get(f"{hasty.url}/v1/models")
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    assert refused.json()["error"]["code"] == "overloaded"
    assert refused.headers["retry-after"] == "1"
    for connection in there:
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert until_closed(connection)[0].startswith(b"HTTP/1.1 200 ")
    assert httpx.get(f"{hasty.url}/v1/models").status_code == 200


async def test_whoever_hangs_up_ends_all_that_he_sent_at_once(hasty: LiveServer) -> None:
    ask = Ask("/v1/completions", {"model": hasty.model, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True})
    exchange = await Exchange.begin(hasty.url, ask)
    exchange._writer.write(ask.encoded("x"))
    while not hasty.app.state.octavo.service.admission.num_under_way:
        await asyncio.sleep(0.01)
    exchange.hang_up()
    await asyncio.to_thread(hasty.until_idle, within=5)


@pytest.mark.parametrize("size", [7, 10_000])
def test_an_offer_of_another_protocol_is_not_taken_and_its_body_is_read(hasty: LiveServer, size: int) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
    sent = Ask("/v1/completions", {"model": hasty.model, "prompt": "Once", "max_tokens": 1}, offer).encoded("x")
    connection = connect(hasty)
    for begin in range(0, 2 * len(sent), size):
        connection.sendall((sent * 2)[begin : begin + size])
    got, _ = until_closed(connection)
    assert got.count(b"HTTP/1.1 200 ") == 2 and got.count(b'"finish_reason":"length"') == 2
