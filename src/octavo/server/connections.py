"""Connection: HTTP/1.1 on one socket, with patience for slow clients but not for ever."""

from __future__ import annotations

import asyncio
import json
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.middleware import TURNED_AWAY
from octavo.server.openai.errors import error_body

MAX_HEAD = 64 * 1024
"""Bytes of a request's line and headers, give or take what one read brings."""
_HEAD_TOO_LARGE = ApiError(ErrorKind.INVALID_REQUEST, f"the headers are larger than {MAX_HEAD:,} bytes")
_GRACE = 5.0
"""Seconds by which a body may be later here than where it is answered with 408."""


class Connection(HttpToolsProtocol):
    """What uvicorn's own connection leaves open: how long a request may take to arrive and an answer to be taken, how
    large headers may be, and that a connection too many is answered like any other request.

    ::

        connected   first byte      headers whole        body whole
            |----------|----------------|--------------------|------ ... until the next request
             client_timeout in all       client_timeout again
    """

    client_timeout: ClassVar[float]
    max_connections: ClassVar[int]

    _arriving: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0
    _is_too_many = False

    @property
    def is_arriving(self) -> bool:
        """Whether a request, or the rest of one, is waited for."""
        return self._arriving is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_too_many = len(self.connections) > self.max_connections
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        self._expect(self.client_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expected()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        if self._arriving is None:
            self._expect(self.client_timeout)
        if self._is_too_many:
            self.scope[TURNED_AWAY] = True  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect(self.client_timeout + _GRACE)
        super().on_headers_complete()
        if self._is_too_many:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._expected()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(self.client_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _expect(self, seconds: float) -> None:
        self._expected()
        self._arriving = self.loop.call_later(seconds, self._too_slow)

    def _expected(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _too_slow(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._in_head:  # half of a next request, sent early: the answer that runs comes first
            self._expect(self.client_timeout)
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        body = json.dumps(error_body(_HEAD_TOO_LARGE)).encode()
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def connection_class(config: ServerConfig) -> type[Connection]:
    """Connections with the limits of ``config``, as uvicorn takes them: as a class."""
    limits = {"client_timeout": config.client_timeout, "max_connections": config.max_connections}
    return type("Connection", (Connection,), limits)
