"""Every request has an id, a bounded body, one end and one note, and nothing it began outlives it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from octavo.server.auth import Access
from octavo.server.calls import Call
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.keys import Key, KeyRing
from octavo.server.middleware import Envelope


class Client:
    """The other end of an application: what it sends, and what it got."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        return await asyncio.Future()  # sends nothing more, and does not hang up

    async def send(self, message: Message) -> None:
        self.got.append(message)

    @property
    def status(self) -> int | None:
        return self.got[0]["status"] if self.got else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


class Answer:
    closed = 0

    async def close(self) -> None:
        self.closed += 1


def piece(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


async def through(app: Any, client: Client, *, keys: KeyRing | None = None, **scope: Any) -> Call:
    """Send one request through an envelope; the call as it was noted, once."""
    noted: list[Call] = []
    envelope = Envelope(
        app,
        access=Access(ServerConfig(), keys),
        max_body=10,
        client_timeout=0.05,
        note=lambda call, _: noted.append(call),
    )
    full = {"type": "http", "method": "POST", "path": "/v1/x", "headers": [], "query_string": b"", **scope}
    try:
        await envelope(full, client.receive, client.send)
    finally:
        assert len(noted) == 1
        assert noted[0].status is not None and noted[0].ended is not None
    return noted[0]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def test_a_body_in_pieces_comes_whole() -> None:
    client = Client(piece(b"one", True), piece(b"", True), piece(b" two"))
    call = await through(echo, client)
    assert (client.status, client.body, call.status) == (200, b"one two", 200)


async def test_every_answer_has_the_request_s_id() -> None:
    for app, client in ((echo, Client(piece(b"x"))), (echo, Client(piece(b"x" * 11)))):
        call = await through(app, client)
        ids = [value for name, value in client.got[0]["headers"] if name in (b"request-id", b"x-request-id")]
        assert ids == [call.request_id.encode()] * 2


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ([(b"content-length", b"11")], []),
        ([(b"content-length", b"9" * 5000)], []),
        ([], [piece(b"x" * 6, True), piece(b"x" * 5, True)]),
        ([(b"content-length", b"3")], [piece(b"x" * 11)]),
        ([(b"content-length", b"-1")], [piece(b"x" * 11)]),
    ],
)
async def test_a_body_that_is_too_large_is_413_whatever_length_was_said(headers: Any, messages: list[Message]) -> None:
    """Where a length is said, before a byte of it is read."""
    client = Client(*messages)
    call = await through(echo, client, headers=headers)
    assert (client.status, call.error) == (413, "request_too_large")


async def test_a_body_that_stalls_is_408() -> None:
    client = Client(piece(b"x", True))
    call = await through(echo, client)
    assert (client.status, call.error) == (408, "slow_client")


async def test_a_client_that_goes_before_its_body_is_whole_is_noted_and_nothing_more() -> None:
    client = Client(piece(b"x", True), GONE)
    call = await through(echo, client)
    assert (client.got, call.status) == ([], 499)


async def test_a_wrong_key_is_known_before_the_body_is_read() -> None:
    client = Client(GONE)  # what a look at the body would find
    await through(echo, client, keys=KeyRing([Key.of("k", "t")], b""))
    assert client.status == 401


@pytest.mark.parametrize(("path", "shape"), [("/v1/messages", b'{"type":"error"'), ("/v1/x", b'{"error"')])
async def test_what_nobody_expected_is_a_500_in_the_dialect_with_its_id_in_the_log(
    path: str, shape: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("a secret")

    client = Client(piece(b"x"))
    call = await through(broken, client, path=path)
    assert client.status == 500 and client.body.startswith(shape) and b"secret" not in client.body
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.fields == {"request_id": call.request_id}  # type: ignore[attr-defined]
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


async def test_an_error_after_the_answer_began_is_logged_and_sends_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    client = Client(piece(b"x"))
    call = await through(breaks, client)
    assert len(client.got) == 1 and call.status == 200
    assert [record.getMessage() for record in caplog.records] == ["request failed"]


@pytest.mark.parametrize(("begun", "status"), [(False, 503), (True, 200)])
async def test_what_outlasts_the_shutdown_is_told_so_if_nothing_was_sent(
    begun: bool, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def lasts(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    client = Client(piece(b"x"))
    task = asyncio.create_task(through(lasts, client))
    await asyncio.sleep(0.01)
    task.cancel()
    call = await task
    assert (client.status, call.error) == (status, "unavailable")
    assert (b"shutting down" in client.body) is not begun
    assert not caplog.records


async def test_what_was_begun_and_never_taken_is_closed_with_the_call() -> None:
    """An endpoint that raises between start and answer cannot leak what it started, nor one that is cancelled."""
    answers = [Answer(), Answer()]

    async def forgets(scope: Scope, receive: Receive, send: Send) -> None:
        scope["octavo.call"].answers += answers
        raise ApiError(ErrorKind.RATE_LIMIT, "no more")

    client = Client(piece(b"x"))
    await through(forgets, client)
    assert client.status == 429
    assert [answer.closed for answer in answers] == [1, 1]

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        scope["octavo.call"].answers += answers
        await asyncio.Future()

    task = asyncio.create_task(through(hangs, Client(piece(b"x"))))
    await asyncio.sleep(0.02)
    task.cancel()
    await task
    assert [answer.closed for answer in answers] == [2, 2]


async def test_one_answer_that_cannot_be_closed_does_not_keep_the_others_open() -> None:
    class Stuck(Answer):
        async def close(self) -> None:
            raise RuntimeError

    answers = [Answer(), Stuck(), Answer()]

    async def begins(scope: Scope, receive: Receive, send: Send) -> None:
        scope["octavo.call"].answers += answers
        await echo(scope, receive, send)

    client = Client(piece(b"x"))
    await through(begins, client)
    assert client.status == 200
    assert (answers[0].closed, answers[2].closed) == (1, 1)


async def test_after_the_body_the_application_hears_of_the_client_s_going() -> None:
    heard: list[str] = []

    async def listens(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    await through(listens, Client(piece(b"x"), GONE))
    assert heard == ["http.request", "http.disconnect"]


async def test_a_connection_too_many_is_turned_away_in_the_dialect() -> None:
    client = Client(piece(b"x"))
    await through(echo, client, **{"octavo.turned_away": True, "path": "/v1/messages"})
    assert client.status in (503, 529) and b"too many connections" in client.body
    assert (b"retry-after", b"1") in client.got[0]["headers"]


async def test_lifespan_passes_untouched() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    access = Access(ServerConfig(), None)
    envelope = Envelope(app, access=access, max_body=1, client_timeout=1, note=lambda *_: seen.append("noted"))
    await envelope({"type": "lifespan"}, Client().receive, Client().send)
    assert seen == ["lifespan"]
