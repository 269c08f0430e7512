"""A client on a bare socket: it sends as much of a request as it likes, reads as far as it likes, and hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Ask:
    """A request for ``path`` with a JSON ``body``."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))

    def streamed(self) -> Ask:
        """The same as a stream, with usage at its end where the dialect leaves it out by itself."""
        usage = {"stream_options": {"include_usage": True}} if self.path.endswith("completions") else {}
        return Ask(self.path, {**self.body, "stream": True, **usage}, self.headers)

    def encoded(self, host: str) -> bytes:
        content = json.dumps(self.body).encode()
        head = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(content)), **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        return "\r\n".join(lines).encode() + content


class Exchange:
    """One request on a connection of its own, and what has come back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, url: str, ask: Ask, num_bytes: int | None = None) -> Exchange:
        """Connect and send the request, or its first ``num_bytes`` alone; a negative number leaves the end away."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
        writer.write(ask.encoded(parts.netloc)[:num_bytes])
        await writer.drain()
        return cls(reader, writer)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names in lower case."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def content(self, headers: dict[str, str]) -> bytes:
        """The whole body."""
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of a body without a length, as the server sent them."""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def frames(self) -> AsyncIterator[Any]:
        """The data of each server-sent event, decoded; ``[DONE]`` is left out."""
        pending = b""
        async for chunk in self.chunks():
            *whole, pending = (pending + chunk).split(b"\n\n")
            for frame in whole:
                data = frame[frame.index(b"data: ") + 6 :]
                if data != b"[DONE]":
                    yield json.loads(data)
        assert not pending, "a stream ends with a whole frame"

    def hang_up(self) -> None:
        """At once, whatever is under way."""
        self._writer.transport.abort()


async def answer(url: str, ask: Ask) -> Any:
    """The body of an answer, decoded; of a streamed one, the list of its frames.

    Raises:
        AssertionError: the status is not 200.
    """
    exchange = await Exchange.begin(url, ask)
    try:
        status, headers = await exchange.head()
        if status != 200 or not ask.is_streamed:
            content = await exchange.content(headers)
            assert status == 200, content
            return json.loads(content)
        return [frame async for frame in exchange.frames()]
    finally:
        exchange.hang_up()
