"""Blocks in events: any reply, cut anywhere, adds up to the message as it comes whole."""

from __future__ import annotations

import json
import timeit
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from octavo.server.answers import Increment
from octavo.server.anthropic.reply import content_blocks, stop_fields
from octavo.server.anthropic.stream import BlockWriter
from octavo.text.reply_parts import Reasoning, ReplyPart, Text, ToolArguments, ToolCallEnd, ToolCallStart, joined

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": 1, "output_tokens": 0},
    },
}
_WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
_JSON = st.recursive(st.none() | st.booleans() | st.integers() | _WORDS, lambda inner: st.lists(inner, max_size=3))


@st.composite
def replies(draw: st.DrawFn) -> list[ReplyPart]:
    """Reasoning, then text and calls; the last call may break off. In pieces."""
    parts: list[ReplyPart] = [Reasoning(words) for words in draw(st.lists(_WORDS, max_size=3))]
    items = draw(st.lists(_WORDS | st.dictionaries(_WORDS, _JSON, max_size=3), max_size=4))
    number = 0
    for place, item in enumerate(items):
        if isinstance(item, str):
            parts.append(Text(item))
            continue
        arguments = json.dumps(item)
        if place == len(items) - 1:
            arguments = arguments[: draw(st.integers(1, len(arguments)))]
        cut = draw(st.integers(0, len(arguments)))
        pieces = [piece for piece in (arguments[:cut], arguments[cut:]) if piece]
        parts += [ToolCallStart(number, "f"), *(ToolArguments(number, piece) for piece in pieces), ToolCallEnd(number)]
        number += 1
    return parts


def accumulated(frames: bytes) -> list[dict[str, Any]]:
    """What the SDK makes of them."""
    snapshot = accumulate_event(event=_EVENT.validate_python(_START), current_snapshot=None, json_bufs={})
    buffers: dict[int, bytes] = {}
    for frame in frames.split(b"\n\n")[:-1]:
        name, data = frame.split(b"\n")
        content = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + content["type"].encode()
        event = _EVENT.validate_python(content)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return [block.to_dict() for block in snapshot.content]


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


@given(replies(), st.booleans(), st.data())
def test_a_stream_adds_up_to_the_whole_message(parts: list[ReplyPart], hides: bool, data: st.DataObject) -> None:
    writer, frames, rest = BlockWriter(hides_thinking=hides), b"", list(parts)
    while rest:
        size = data.draw(st.integers(1, 3))
        frames += writer.write(rest[:size])
        rest = rest[size:]
    frames += writer.close()
    whole = content_blocks(joined(parts), hides_thinking=hides)
    assert without_ids(accumulated(frames)) == without_ids(whole)
    assert frames.count(b"event: content_block_start") == frames.count(b"event: content_block_stop") == len(whole)
    assert not hides or not any(block.get("thinking") for block in whole)
    calls = [part for part in joined(parts) if isinstance(part, ToolArguments)]
    assert writer.arguments == (calls[-1].text if calls else "")


def test_a_stop_sequence_ends_an_answer_only_where_no_whole_call_does() -> None:
    def ended(finish: Any, stop: str | None, arguments: str) -> tuple[str, str | None]:
        fields = stop_fields(Increment(0, [], [], None, finish, stop), arguments)
        return fields["stop_reason"], fields["stop_sequence"]

    assert ended("stop", None, "") == ("end_turn", None)
    assert ended("length", None, '{"a') == ("max_tokens", None)
    assert ended("stop_sequence", "x", "") == ("stop_sequence", "x")
    assert ended("tool_calls", None, "{}") == ("tool_use", None)
    assert ended("tool_calls", "x", '{"a": 1}') == ("tool_use", None)
    assert ended("tool_calls", "x", '{"a": 1') == ("stop_sequence", "x")


def test_a_frame_costs_little() -> None:
    writer = BlockWriter()
    writer.write([Text("begin")])
    part: list[ReplyPart] = [Text(" token")]
    seconds = min(timeit.repeat(lambda: writer.write(part), number=2000, repeat=5)) / 2000
    assert seconds < 15e-6 * 4, "four times what it may take on a machine that does nothing else"
