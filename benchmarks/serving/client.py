"""An HTTP client that costs the servers little: it shares their processors, so it only waits, reads and notes the time.

A reply is kept as it came, piece by piece with the time of each; `answer.read` makes sense of it when nobody waits.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.errors import PeerError
from benchmarks.peers.recipe import HOST

_PIECE_BYTES = 1 << 16
_SILENCE_SECONDS = 300
"""A server that sends nothing to anybody for so long is given up."""


@dataclass(slots=True)
class Reply:
    """What came back on one connection, undigested. Times are those of ``time.perf_counter``."""

    user: int
    began: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Span:
    """All replies, in the order in which they ended; the seconds from the first request to the last byte; and how many
    of them a processor was busy with the client.
    """

    replies: Sequence[Reply]
    seconds: float
    client_seconds: float


Next = Callable[[Reply], bytes | None]
"""Told each whole reply; returns the request that its user sends next, if any."""


def exchange(port: int, requests: Sequence[bytes], then: Next = lambda _: None) -> Span:
    """Send one request per user, all at once, and what ``then`` says for as long as it says something.

    Each request has a connection of its own, which the server closes behind its reply.

    Raises:
        PeerError: the server refuses connections, breaks one, or falls silent.
    """
    replies: list[Reply] = []
    busy = time.thread_time()
    began = time.perf_counter()
    poll = select.epoll()
    open_ones: dict[int, tuple[socket.socket, Reply]] = {}

    def send(user: int, request: bytes) -> None:
        reply = Reply(user, time.perf_counter())
        connection = socket.create_connection((HOST, port))
        connection.sendall(request)
        poll.register(connection, select.EPOLLIN)
        open_ones[connection.fileno()] = connection, reply

    try:
        for user, request in enumerate(requests):
            send(user, request)
        while open_ones:
            events = poll.poll(_SILENCE_SECONDS)
            if not events:
                raise PeerError(f"the server sent nothing for {_SILENCE_SECONDS} seconds")
            for number, _ in events:
                connection, reply = open_ones[number]
                piece = connection.recv(_PIECE_BYTES)
                if piece:
                    reply.pieces.append((time.perf_counter(), piece))
                    continue
                del open_ones[number]
                connection.close()  # which takes it out of the poll
                replies.append(reply)
                following = then(reply)
                if following is not None:
                    send(reply.user, following)
    except OSError as error:
        raise PeerError(f"the connection to the server failed: {error}") from error
    finally:
        for connection, _ in open_ones.values():
            connection.close()
        poll.close()
    last = max((reply.pieces[-1][0] for reply in replies if reply.pieces), default=began)
    return Span(replies, last - began, time.thread_time() - busy)


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A request that asks the server to close the connection behind its reply."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1",
        f"Host: {HOST}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Accept: text/event-stream",
        "Connection: close",
    )
    return "\r\n".join([*head, "", ""]).encode() + content
