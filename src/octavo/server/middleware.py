"""Envelope: what surrounds every request: its id, the limit on its body, and what is noted when it has ended."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.calls import Call
from octavo.server.dialects import error_response
from octavo.server.errors import ApiError, ErrorKind

Note = Callable[[Call, int], None]
"""Told of a call that has ended and the status it was answered with; 499 where the client was gone before."""

CLIENT_GONE = 499


class Envelope:
    """The outermost layer. Pure ASGI, so that a stream passes it frame by frame.

    Args:
        max_body: most bytes of a request's body; more is answered 413, at once where the client says the length.
        note: called once for each request, when all of its answer is sent or it was given up.
    """

    def __init__(self, app: ASGIApp, *, max_body: int, note: Note) -> None:
        self._app = app
        self._max_body = max_body
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = scope["octavo.call"] = Call(scope["path"])
        request_id = call.request_id.encode()
        status = CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(b"x-request-id", request_id), (b"request-id", request_id)]
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
            await send(message)

        try:
            if self._declared(scope) > self._max_body:
                await error_response(HTTPConnection(scope), self._too_large())(scope, receive, send_with_id)
            else:
                await self._app(scope, self._counted(receive), send_with_id)
        finally:
            self._note(call, status)

    def _declared(self, scope: Scope) -> int:
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        return int(length) if length.isdigit() else 0

    def _counted(self, receive: Receive) -> Receive:
        """``receive``, for a body that comes in pieces of which nobody said how many."""
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            if message["type"] == "http.request":
                total += len(message.get("body", b""))
                if total > self._max_body:
                    raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(
            ErrorKind.TOO_LARGE, f"the body is larger than the {self._max_body:,} bytes that this server takes"
        )
