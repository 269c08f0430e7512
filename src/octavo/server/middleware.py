"""Envelope: what surrounds every request: its id, its key, its body, its end, and what is noted of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.auth import Access
from octavo.server.calls import Call
from octavo.server.dialects import error_response
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.logs import log_failure
from octavo.server.streaming import ClientGoneError

Note = Callable[[Call, Scope], None]
"""Told of a call that has ended: its usage is final, its status is set."""

CLIENT_GONE = 499
"""The status that is noted where the client was gone before there was one."""
TURNED_AWAY = "octavo.turned_away"
"""In the scope of a request whose connection is one too many."""


class Envelope:
    """Pure ASGI, so that a stream passes it frame by frame. Nothing of ours lies outside of it but CORS; whatever the
    application raises ends here.

    The body is read here, whole and within limits, after the key was checked: nobody unknown can make the server read
    one, and what is slow or broken off holds nothing but its connection.

    Args:
        max_body: most bytes of a request's body; more is answered 413, at once where the client says the length.
        client_timeout: seconds that a body may take to arrive; then 408.
        note: called once for each request, when all of its answer is sent or it was given up.
    """

    def __init__(self, app: ASGIApp, *, access: Access, max_body: int, client_timeout: float, note: Note) -> None:
        self._app = app
        self._access = access
        self._max_body = max_body
        self._client_timeout = client_timeout
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = scope["octavo.call"] = Call(scope["path"], scope["method"])
        outgoing = _with_id(call, send)
        try:
            try:
                self._admit(call, scope)
                body = await self._body(scope, receive)
                call.body_size = len(body)
                await self._app(scope, _replayed(body, receive), outgoing)
            finally:
                await call.close()
        except ClientGoneError:
            pass
        except asyncio.CancelledError:  # by uvicorn alone, which ends so what outlasts a shutdown, and cuts it off then
            ending = ApiError(ErrorKind.UNAVAILABLE, "the server is shutting down")
            if call.status is None:
                await error_response(HTTPConnection(scope), ending)(scope, receive, outgoing)
            else:
                call.error = ending.name
        except Exception as error:
            if not isinstance(error, ApiError):
                log_failure(call, error)
            if call.status is None:
                await error_response(HTTPConnection(scope), as_api_error(error))(scope, receive, outgoing)
        finally:
            if call.status is None:
                call.status = CLIENT_GONE
            call.ended = time.monotonic()
            self._note(call, scope)

    def _admit(self, call: Call, scope: Scope) -> None:
        if scope.get(TURNED_AWAY):
            raise ApiError(
                ErrorKind.UNAVAILABLE, "this server has too many connections", code="overloaded", retry_after=1
            )
        call.caller = self._access.caller(scope)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        if _declared(scope) > self._max_body:
            raise self._too_large()
        pieces: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(self._client_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    pieces.append(message.get("body", b""))
                    total += len(pieces[-1])
                    if total > self._max_body:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError as error:
            raise ApiError(
                ErrorKind.SLOW_CLIENT, f"the body did not arrive within {self._client_timeout:g} seconds"
            ) from error

    def _too_large(self) -> ApiError:
        return ApiError(
            ErrorKind.TOO_LARGE,
            f"the body is larger than the {self._max_body:,} bytes that this server takes",
            code="request_too_large",
        )


def _with_id(call: Call, send: Send) -> Send:
    request_id = call.request_id.encode()

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            call.status = message["status"]
            ids = [(b"x-request-id", request_id), (b"request-id", request_id)]
            message = {**message, "headers": [*message.get("headers", ()), *ids]}
        await send(message)

    return send_with_id


def _declared(scope: Scope) -> int:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length[:20]) if length.isdigit() else 0


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read, and then whatever comes: that the client is gone."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
