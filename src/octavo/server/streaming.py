"""Responses that end with their client: whoever hangs up has his request cancelled at once, streamed or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.answers import Answer
from octavo.server.errors import ApiError, ErrorKind, as_api_error

_T = TypeVar("_T")
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class ClientGoneError(Exception):
    """The client hung up; nobody is there to be told anything."""


class JSON(Response):
    """A JSON body. Plain ASCII, so that half a surrogate pair in a message cannot break it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _ENCODE(content).encode("ascii")


async def until_disconnect(http: Request, work: Awaitable[_T]) -> _T:
    """``work``, cancelled as soon as the client hangs up. The request's body must have been read.

    Raises:
        ClientGoneError: it hung up.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hang_up(http.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _ended(task, gone)


class EventStream(Response):
    """Server-sent events, from an answer that has begun. Closes the answer when it ends, however it ends.

    Args:
        answers: what is closed at the end.
        frames: whole frames, ready to be sent.
        error_frame: what tells the client, in its dialect, that the answer cannot go on.
    """

    media_type = "text/event-stream"

    def __init__(
        self, answers: list[Answer], frames: AsyncIterator[bytes], error_frame: Callable[[ApiError], bytes]
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._answers = answers
        self._frames = frames
        self._error_frame = error_frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = asyncio.ensure_future(self._stream(scope, send))
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            await asyncio.wait({stream, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(stream, gone)
            if isinstance(self._frames, AsyncGenerator):
                await self._frames.aclose()  # before its answers, which something of it may be waiting for
            for answer in self._answers:
                await answer.close()
        if not stream.cancelled():
            stream.result()

    async def _stream(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        fault: Exception | None = None
        try:
            async for frame in self._frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except Exception as error:
            known = as_api_error(error)
            scope["octavo.call"].error = known.name
            fault = error if known.kind is ErrorKind.INTERNAL else None
            await send({"type": "http.response.body", "body": self._error_frame(known), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if fault is not None:
            raise fault  # ours: the log must have it


def data_frame(content: Any) -> bytes:
    """A frame without an event's name, as OpenAI's chat streams have them."""
    return b"data: " + _ENCODE(content).encode("ascii") + b"\n\n"


def event_frame(event: str, content: Any) -> bytes:
    """A named frame, as Anthropic's streams and OpenAI's responses have them."""
    return b"event: " + event.encode() + b"\ndata: " + _ENCODE(content).encode("ascii") + b"\n\n"


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them and wait until they are over; what they raised on the way is nobody's any more."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
