"""A message as the client gets it in events: a block is opened, grows, and is closed before the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from octavo.server.answers import Answer, Increment
from octavo.server.anthropic.diagnostics import Diagnostics
from octavo.server.anthropic.reply import empty_message, opened_block, stop_fields
from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.calls import Call
from octavo.server.streaming import event_frame
from octavo.text.reply_parts import Reasoning, ReplyPart, Text, ToolArguments, ToolCallEnd, ToolCallStart

_PING = event_frame("ping", {"type": "ping"})
_MESSAGE_STOP = event_frame("message_stop", {"type": "message_stop"})
_CLOSE = b"}}\n\n"
_DELTA_HEAD = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
_DELTAS = {
    Text: (b"text_delta", b"text"),
    Reasoning: (b"thinking_delta", b"thinking"),
    ToolCallStart: (b"input_json_delta", b"partial_json"),
}


async def message_frames(
    answer: Answer, body: MessagesRequest, call: Call, diagnostics: Diagnostics
) -> AsyncIterator[bytes]:
    """Frames for :class:`octavo.server.streaming.EventStream`; what one step of the engine brought is one of them."""
    yield _start(empty_message(answer, body, call, diagnostics)) + _PING
    blocks = BlockWriter(hides_thinking=body.hides_thinking)
    last: Increment | None = None
    async for news in answer.increments():
        for last in news:
            frames = blocks.write(last.parts)
            if frames:
                yield frames
    assert last is not None  # an answer has at least one increment: its last
    yield blocks.close() + _delta(last, answer, blocks.arguments) + _MESSAGE_STOP


class BlockWriter:
    """Parts of a reply as frames of content blocks. This runs for every token, so frames are put together by hand."""

    def __init__(self, *, hides_thinking: bool = False) -> None:
        self._hides_thinking = hides_thinking
        self._index = -1
        self._kind: type[ReplyPart] | None = None  # of the open block
        self._head = b""  # of its deltas, up to the text
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        """Of the last call."""
        return "".join(self._arguments)

    def write(self, parts: Iterable[ReplyPart]) -> bytes:
        """The frames that ``parts`` make, one behind the other."""
        frames = b""
        for part in parts:
            if isinstance(part, ToolCallEnd):
                frames += self.close()
                continue
            if isinstance(part, ToolArguments):
                self._arguments.append(part.text)
            elif type(part) is not self._kind or isinstance(part, ToolCallStart):
                frames += self.close() + self._open(part)
            if self._head and not isinstance(part, ToolCallStart):
                frames += self._head + encode_basestring_ascii(part.text).encode("ascii") + _CLOSE
        return frames

    def close(self) -> bytes:
        """The end of the open block, if one is."""
        if self._kind is None:
            return b""
        self._kind = None
        return event_frame("content_block_stop", {"type": "content_block_stop", "index": self._index})

    def _open(self, part: Text | Reasoning | ToolCallStart) -> bytes:
        self._index += 1
        self._kind = type(part)
        if isinstance(part, ToolCallStart):
            self._arguments = []
        hidden = self._hides_thinking and isinstance(part, Reasoning)
        self._head = b"" if hidden else _DELTA_HEAD % (self._index, *_DELTAS[type(part)])
        opened = {"type": "content_block_start", "index": self._index, "content_block": opened_block(part)}
        return event_frame("content_block_start", opened)


def _start(message: dict[str, Any]) -> bytes:
    return event_frame("message_start", {"type": "message_start", "message": message})


def _delta(last: Increment, answer: Answer, arguments: str) -> bytes:
    """How it ended. Figures are totals, and stand in place of those of the start."""
    usage = answer.usage.anthropic()
    del usage["cache_creation"]  # no part of what this event may hold; the start has said it
    delta = {"type": "message_delta", "delta": stop_fields(last, arguments), "usage": usage}
    return event_frame("message_delta", delta)
