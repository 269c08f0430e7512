"""Connection: HTTP/1.1 on one socket, with patience for slow clients but not for ever."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.middleware import TURNED_AWAY
from octavo.server.openai.errors import error_body

MAX_HEAD = 64 * 1024
"""Bytes of a request's line and headers, give or take what one read brings."""
_HEAD_TOO_LARGE = ApiError(ErrorKind.INVALID_REQUEST, f"the headers are larger than {MAX_HEAD:,} bytes")
_NOT_HTTP = ApiError(ErrorKind.INVALID_REQUEST, "this is not a request of HTTP/1.1 that can be read")
_GRACE = 5.0
"""Seconds by which a body may be later here than where it is answered with 408."""


class Connection(HttpToolsProtocol):
    """What uvicorn's own connection leaves open: how long a request may take to arrive and an answer to be taken, how
    large headers may be, and that a connection too many is answered like any other request. Whoever hangs up ends all
    that he asked for, and whoever offers another protocol (Java's HTTP client does) is answered in this one.

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
    _unanswered: tuple[RequestResponseCycle, ...] = ()
    _received = b""

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
        for cycle in self._unanswered:  # uvicorn tells the last one alone, and another's answer may be under way
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        was_in_head, self._received = self._in_head, data
        super().data_received(data)
        self._received = b""
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse("431 Request Header Fields Too Large", _HEAD_TOO_LARGE)

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
        if self._offers_protocol:
            return
        super().on_headers_complete()
        self._unanswered = (*(cycle for cycle in self._unanswered if not cycle.response_complete), self.cycle)
        if self._is_too_many:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        if self._offers_protocol:
            return
        self._expected()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse("400 Bad Request", _NOT_HTTP)

    @property
    def _offers_protocol(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """The parser has stopped behind the headers of a request that offers another protocol, and would not read its
        body: the same request is read once more, without the offer.
        """
        stopped = sys.exc_info()[1]
        if not self._offers_protocol or stopped is None:
            return
        rest = self._received[stopped.args[0] :]
        line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([line, *headers, b"", rest]))

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

    def _refuse(self, status: str, error: ApiError) -> None:
        """Before there is a request that could be answered."""
        body = json.dumps(error_body(error)).encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def connection_class(config: ServerConfig) -> type[Connection]:
    """Connections with the limits of ``config``, as uvicorn takes them: as a class."""
    limits = {"client_timeout": config.client_timeout, "max_connections": config.max_connections}
    return type("Connection", (Connection,), limits)
