"""A message as the client gets it whole."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from octavo.server.answers import Answer, Increment
from octavo.server.anthropic.diagnostics import Diagnostics
from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.calls import Call
from octavo.text.reply_parts import Reasoning, ReplyPart, Text, ToolArguments, ToolCallStart, joined

STOP_REASONS = {"stop": "end_turn", "stop_sequence": "stop_sequence", "tool_calls": "tool_use", "length": "max_tokens"}
Content = dict[str, Any]


async def whole_message(answer: Answer, body: MessagesRequest, call: Call, diagnostics: Diagnostics) -> dict[str, Any]:
    """The answer to its end.

    Raises:
        ApiError: it cannot go on.
    """
    pieces: list[ReplyPart] = []
    last: Increment | None = None
    async for news in answer.increments():
        for last in news:
            pieces += last.parts
    assert last is not None  # an answer has at least one increment: its last
    parts = joined(pieces)
    arguments = next((part.text for part in reversed(parts) if isinstance(part, ToolArguments)), "")
    return {
        **empty_message(answer, body, call, diagnostics),
        "content": content_blocks(parts, hides_thinking=body.hides_thinking),
        **stop_fields(last, arguments),
    }


def empty_message(answer: Answer, body: MessagesRequest, call: Call, diagnostics: Diagnostics) -> dict[str, Any]:
    """The message before anything of it is known but what its prompt used."""
    return {
        "id": f"msg_{call.request_id.removeprefix('req_')}",
        "type": "message",
        "role": "assistant",
        "model": body.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**answer.usage.anthropic(), "service_tier": "standard"},
        "diagnostics": diagnostics,
    }


def stop_fields(last: Increment, arguments: str) -> dict[str, Any]:
    """Why the answer ended. ``arguments``: of its last call.

    A stop sequence that broke off a call is what ended the answer: there is nothing to run.
    """
    finish = last.finish or "stop"
    if finish == "tool_calls" and last.stop_string is not None and not _is_object(arguments):
        finish = "stop_sequence"
    stop_sequence = last.stop_string if finish == "stop_sequence" else None
    return {"stop_reason": STOP_REASONS[finish], "stop_sequence": stop_sequence}


def content_blocks(parts: Sequence[ReplyPart], *, hides_thinking: bool) -> list[Content]:
    """The blocks of joined parts, in their order."""
    blocks: list[Content] = []
    for part in parts:
        if isinstance(part, ToolArguments):
            blocks[-1]["input"] = read_input(part.text)
        elif (block := opened_block(part)) is not None:
            if isinstance(part, Text):
                block["text"] = part.text
            elif isinstance(part, Reasoning) and not hides_thinking:
                block["thinking"] = part.text
            blocks.append(block)
    return blocks


def opened_block(part: ReplyPart) -> Content | None:
    """The empty block that ``part`` begins; ``None`` if it is more of one, or the end of one."""
    if isinstance(part, Text):
        return {"type": "text", "text": ""}
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": "", "signature": ""}
    if isinstance(part, ToolCallStart):
        return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": part.name, "input": {}}
    return None


def read_input(arguments: str) -> dict[str, Any]:
    """A call's input. Of one that was cut off, what is whole: clients read a stream that breaks off in the same way."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(from_json(arguments), dict)
    except ValueError:
        return False
