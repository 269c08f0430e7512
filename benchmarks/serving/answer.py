"""Makes sense of a streamed reply once it is whole: its text, its counts, and when its first token came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.errors import PeerError
from benchmarks.serving.client import Reply

_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Answer:
    """``num_frames``: those that bring text. ``first``: seconds from the request to the first of them; ``seconds``: to
    the last byte. Counts are the server's own.
    """

    text: str
    num_frames: int
    first: float
    seconds: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int


def read(reply: Reply, num_tokens: int) -> Answer:
    """A reply of ``/v1/chat/completions`` or ``/v1/completions`` with ``stream`` and ``include_usage``.

    Raises:
        PeerError: it is an error, is cut off, or has another length than ``num_tokens``.
    """
    texts: list[str] = []
    first = None
    usage: dict[str, Any] = {}
    is_done = False
    for arrived, event in events(reply):
        if event == _DONE:
            is_done = True
            continue
        frame = json.loads(event)
        if "error" in frame:
            raise PeerError(f"the server sent an error: {frame['error']}")
        usage = frame.get("usage") or usage
        text = "".join(_text(choice) for choice in frame["choices"])
        if text:
            texts.append(text)
            first = arrived if first is None else first
    if not is_done or first is None or not usage:
        raise PeerError(f"the server's stream is cut off: {len(texts)} frames, done: {is_done}, usage: {usage}")
    if usage["completion_tokens"] != num_tokens:
        raise PeerError(f"asked for {num_tokens} tokens, got {usage['completion_tokens']}")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text="".join(texts),
        num_frames=len(texts),
        first=first - reply.began,
        seconds=reply.pieces[-1][0] - reply.began,
        num_prompt_tokens=usage["prompt_tokens"],
        num_cached_tokens=details.get("cached_tokens") or 0,
        num_tokens=num_tokens,
    )


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def events(reply: Reply) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and when its last byte came.

    Raises:
        PeerError: the server answered something else than 200, or nothing.
    """
    unread = b""
    for arrived, payload in _payloads(reply):
        *lines, unread = (unread + payload).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield arrived, line.removeprefix(b"data:").strip()


def _payloads(reply: Reply) -> Iterator[tuple[float, bytes]]:
    """The body in parts without the framing of HTTP, each with the time at which its end came."""
    raw = b"".join(piece for _, piece in reply.pieces)
    head, separator, body = raw.partition(b"\r\n\r\n")
    if not separator:
        raise PeerError(f"the server did not answer: {raw[:200]!r}")
    status, *headers = head.lower().split(b"\r\n")
    if status.split()[1] != b"200":
        raise PeerError(f"the server answered {status.decode()}: {body[:500].decode(errors='replace')}")
    chunked = any(line.replace(b" ", b"") == b"transfer-encoding:chunked" for line in headers)
    spans = _chunks(raw, len(head) + 4) if chunked else _rests(reply, len(head) + 4)
    times = _Times(reply)
    for start, end in spans:
        yield times.of(end), raw[start:end]


def _chunks(raw: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Where the content of each chunk lies: ``SIZE in hex CRLF content CRLF``, up to one of size 0."""
    while (line := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line].split(b";")[0], 16)
        start, at = line + 2, line + 4 + size
        if size == 0:
            return
        yield start, min(start + size, len(raw))


def _rests(reply: Reply, at: int) -> Iterator[tuple[int, int]]:
    """What each piece has of a body that ends with the connection."""
    end = 0
    for _, piece in reply.pieces:
        end += len(piece)
        if end > at:
            yield at, end
            at = end


class _Times:
    """When the byte before an offset came; asked with rising offsets."""

    def __init__(self, reply: Reply) -> None:
        self._pieces = iter(reply.pieces)
        self._time, self._end = 0.0, 0

    def of(self, offset: int) -> float:
        while self._end < offset:
            self._time, piece = next(self._pieces)
            self._end += len(piece)
        return self._time
