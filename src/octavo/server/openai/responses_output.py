"""What a response says, item by item as it comes, and the events that tell it to a client who streams."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Protocol

from octavo.engine.outputs import TokenLogprobs
from octavo.server.answers import Increment
from octavo.server.openai.logprobs import ChatLogprobs
from octavo.server.openai.responses_items import Item, new_id
from octavo.server.streaming import event_frame
from octavo.text.reply_parts import Reasoning, Text, ToolArguments, ToolCallEnd, ToolCallStart
from octavo.text.tokenizer import Tokenizer


class Events(Protocol):
    """Takes what happens to a response's items."""

    def event(self, kind: str, **fields: Any) -> None:
        """Something that happens once."""

    def delta(self, head: str, text: str, tail: str) -> None:
        """One more piece: ``text`` as JSON between what is the same for every piece of an item."""


class NoEvents:
    """For a client who waits for the whole."""

    def event(self, kind: str, **fields: Any) -> None:
        pass

    def delta(self, head: str, text: str, tail: str) -> None:
        pass


class EventFrames:
    """Numbered frames, collected until they are taken."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._number = 0

    def event(self, kind: str, **fields: Any) -> None:
        self._frames.append(event_frame(kind, {"type": kind, **fields, "sequence_number": self._number}))
        self._number += 1

    def delta(self, head: str, text: str, tail: str) -> None:
        # Every token passes here: three strings are joined instead of an object being written as JSON.
        self._frames.append(f'{head}{quoted(text)}{tail},"sequence_number":{self._number}}}\n\n'.encode("ascii"))
        self._number += 1

    def take(self) -> bytes:
        """All frames since the last time; empty if nothing happened."""
        frames, self._frames = self._frames, []
        return b"".join(frames)


class ResponseOutput:
    """The items of one response.

    Args:
        tokenizer: for what tokens are in bytes.
        top_logprobs: how many alternatives are reported beside a token; ``None``: no log-probabilities at all.
    """

    def __init__(self, events: Events, tokenizer: Tokenizer, top_logprobs: int | None) -> None:
        self.items: list[Item] = []
        self._events = events
        self._entries = ChatLogprobs(tokenizer, top_logprobs)
        self._is_special = tokenizer.is_special
        self._open: _OpenText | _OpenCall | None = None
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is yet to come

    def add(self, increment: Increment) -> None:
        """What is new. With the last increment all items are closed."""
        cut = increment.finish == "length"
        if increment.logprobs:
            self._logprobs += self._shown(increment.token_ids, increment.logprobs)
        for part in increment.parts:
            if isinstance(part, Text):
                self._text(_MESSAGE, part.text)
            elif isinstance(part, Reasoning):
                self._text(_REASONING, part.text)
            elif isinstance(part, ToolCallStart):
                self._begin(_OpenCall(self._events, len(self.items), part.name))
            elif isinstance(part, ToolArguments):
                self._call().add(part.text)
                self._logprobs.clear()
            elif isinstance(part, ToolCallEnd):
                self._call().cut = not _is_object(self._call().arguments)
                self._close()
        if increment.finish is not None:
            self._finish(cut)

    def break_off(self) -> None:
        """Nothing more comes: close what is open as it is."""
        if self._open is not None:
            self._open.cut = True
            self._close()

    def _finish(self, cut: bool) -> None:
        if self._open is None and not self.items:
            self._text(_MESSAGE, "")
        if self._open is not None:
            self._open.cut = cut
            if self._logprobs and isinstance(self._open, _OpenText) and self._open.kind is _MESSAGE:
                self._open.add("", self._take_logprobs())
        self._close()

    def _text(self, kind: _TextKind, text: str) -> None:
        current = self._open
        if not isinstance(current, _OpenText) or current.kind is not kind:
            current = _OpenText(self._events, len(self.items), kind)
            self._begin(current)
        if kind is _REASONING:
            self._logprobs.clear()  # they are no part of what is said
        current.add(text, self._take_logprobs())

    def _take_logprobs(self) -> list[dict[str, Any]]:
        if not self._logprobs:
            return _NO_LOGPROBS
        taken, self._logprobs = self._logprobs, []
        return taken

    def _call(self) -> _OpenCall:
        assert isinstance(self._open, _OpenCall)
        return self._open

    def _begin(self, item: _OpenText | _OpenCall) -> None:
        self._close()
        self._open = item
        self.items.append(item.begin())

    def _close(self) -> None:
        if self._open is not None:
            self.items[-1] = self._open.end()
            self._open = None

    def _shown(self, token_ids: list[int], logprobs: list[TokenLogprobs]) -> list[dict[str, Any]]:
        """Of each token that is text: joined, the tokens are the text."""
        said = [position for token, position in zip(token_ids, logprobs, strict=True) if not self._is_special(token)]
        entries = self._entries.of(said)
        return [] if entries is None else list(entries["content"])


class _TextKind:
    """What differs between what is said and what is thought."""

    def __init__(self, prefix: str, event: str, head: dict[str, Any], part: dict[str, Any], *, logprobs: bool) -> None:
        self.prefix = prefix
        self.event = event
        self.head = head
        self.part = part
        self.logprobs = logprobs


_MESSAGE = _TextKind(
    "msg",
    "response.output_text",
    {"type": "message", "role": "assistant"},
    {"type": "output_text", "text": "", "annotations": []},
    logprobs=True,
)
_REASONING = _TextKind(
    "rs",
    "response.reasoning_text",
    {"type": "reasoning", "summary": []},
    {"type": "reasoning_text", "text": ""},
    logprobs=False,
)
_NO_LOGPROBS: list[dict[str, Any]] = []


class _OpenText:
    """A message or a reasoning item that is being written. It has one part."""

    def __init__(self, events: Events, index: int, kind: _TextKind) -> None:
        self.kind = kind
        self.cut = False
        self._events = events
        self._id = new_id(kind.prefix)
        self._at = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        name = f"{kind.event}.delta"
        self._delta_head = (
            f'event: {name}\ndata: {{"type":"{name}","item_id":"{self._id}","output_index":{index},'
            '"content_index":0,"delta":'
        )
        self._delta_tail = ',"logprobs":[]' if kind.logprobs else ""

    def begin(self) -> Item:
        item = self._item("in_progress", [])
        self._events.event("response.output_item.added", output_index=self._at["output_index"], item=item)
        self._events.event("response.content_part.added", **self._at, part=self._part(""))
        return item

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._pieces.append(text)
        if logprobs:
            self._logprobs += logprobs
            self._events.event(f"{self.kind.event}.delta", **self._at, delta=text, logprobs=logprobs)
        elif text:
            self._events.delta(self._delta_head, text, self._delta_tail)

    def end(self) -> Item:
        text = "".join(self._pieces)
        extra = {"logprobs": self._logprobs} if self.kind.logprobs else {}
        part = self._part(text)
        item = self._item("incomplete" if self.cut else "completed", [part])
        self._events.event(f"{self.kind.event}.done", **self._at, text=text, **extra)
        self._events.event("response.content_part.done", **self._at, part=part)
        self._events.event("response.output_item.done", output_index=self._at["output_index"], item=item)
        return item

    def _item(self, status: str, content: list[dict[str, Any]]) -> Item:
        return {"id": self._id, **self.kind.head, "status": status, "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        part = {**self.kind.part, "text": text}
        return {**part, "logprobs": self._logprobs} if self.kind.logprobs else part


class _OpenCall:
    """A call that is being written."""

    def __init__(self, events: Events, index: int, name: str) -> None:
        self.cut = False
        self._events = events
        self._index = index
        self._id = new_id("fc")
        self._head = {"id": self._id, "type": "function_call", "call_id": new_id("call"), "name": name}
        self._pieces: list[str] = []
        kind = "response.function_call_arguments.delta"
        self._delta_head = (
            f'event: {kind}\ndata: {{"type":"{kind}","item_id":"{self._id}","output_index":{index},"delta":'
        )

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def begin(self) -> Item:
        item = {**self._head, "arguments": "", "status": "in_progress"}
        self._events.event("response.output_item.added", output_index=self._index, item=item)
        return item

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._events.delta(self._delta_head, text, "")

    def end(self) -> Item:
        at = {"item_id": self._id, "output_index": self._index}
        item = {**self._head, "arguments": self.arguments, "status": "incomplete" if self.cut else "completed"}
        self._events.event("response.function_call_arguments.done", **at, name=item["name"], arguments=self.arguments)
        self._events.event("response.output_item.done", output_index=self._index, item=item)
        return item


def _is_object(arguments: str) -> bool:
    """Whether it is a call that can be made: it can also have gone wrong, where nothing held it to the function."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
