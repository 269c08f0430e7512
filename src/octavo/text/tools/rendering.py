"""What a template shows of tools, and what is shown in its stead where it shows none of it.

A template that takes no tools gets everything as text, in the Hermes form::

    system     # Tools ... <tools>{"type": "function", ...}</tools> ... (then the conversation's own system text)
    user       How warm is it in Bern?
    assistant  <tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>
    user       <tool_response>18 °C</tool_response>

One that takes tools, but neither calls nor results, gets those as text, calls as its own model writes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from octavo.text.messages import JOINER, SYSTEM_ROLES, Message, text_parts, with_parts
from octavo.text.tools.detect import ToolSupport
from octavo.text.tools.tool_format import Call, to_json

_INTRODUCTION = """\
# Tools

You can call functions to help with the user's request. These are their signatures:
<tools>
"""
_INSTRUCTIONS = """
</tools>

To call a function, write a JSON object with its name and arguments inside <tool_call></tool_call>, one for each call:
<tool_call>
{"name": "function name", "arguments": {"argument name": "value"}}
</tool_call>
The results come back inside <tool_response></tool_response>. If no function helps, answer without calling one."""


def adapted(messages: list[Message], tools: Sequence[dict[str, Any]] | None, support: ToolSupport) -> list[Message]:
    """The messages as this template takes them; ``tools`` are written into them if it takes none."""
    messages = [_with_calls(message, support) for message in messages]
    if not support.shows_results:
        messages = _with_results(messages, merge_user=support.wants_turns)
    if tools and not support.shows_tools:
        messages = _with_tools(messages, tools, support)
    return [_short_ids(message) for message in messages] if support.short_ids else messages


def _with_calls(message: Message, support: ToolSupport) -> Message:
    """The message with its calls written out, unless the template shows them."""
    if not message.get("tool_calls"):
        return {key: value for key, value in message.items() if key != "tool_calls"}
    if support.shows_calls:
        return {**message, "content": ""} if support.wants_content and "content" not in message else message
    calls = [call.get("function", call) for call in message["tool_calls"]]
    written = support.tool_format.write([Call(call["name"], call.get("arguments") or {}) for call in calls])
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return _with_more_text(others, written, JOINER)


def _with_results(messages: list[Message], merge_user: bool) -> list[Message]:
    """Results of tools as a user's message, those in a row as one.

    ``merge_user``: what the user says right after them goes into that message too.
    """
    merged: list[Message] = []
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = JOINER.join(text_parts(message))
            message = {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
        if follows_result and (is_result or (merge_user and message["role"] == "user")):
            merged[-1] = _with_more_text(merged[-1], JOINER.join(text_parts(message)), JOINER)
        else:
            merged.append(message)
        follows_result = is_result
    return merged


def _with_tools(messages: list[Message], tools: Sequence[dict[str, Any]], support: ToolSupport) -> list[Message]:
    """Tools first of all: in the system message, or before what the user says where there can be none."""
    text = _INTRODUCTION + JOINER.join(map(to_json, tools)) + _INSTRUCTIONS
    first = messages[0]
    if first["role"] in SYSTEM_ROLES or (not support.takes_system and first["role"] == "user"):
        parts = text_parts(first)
        parts[:1] = [f"{text}\n\n{parts[0]}" if parts and parts[0] else text]
        return [with_parts(first, parts), *messages[1:]]
    return [{"role": "system" if support.takes_system else "user", "content": text}, *messages]


def _with_more_text(message: Message, text: str, joiner: str) -> Message:
    parts = text_parts(message)
    last = f"{parts[-1]}{joiner}{text}" if parts and parts[-1] else text
    return with_parts(message, [*parts[:-1], last])


def _short_ids(message: Message) -> Message:
    """Ids of calls in nine letters and digits, equal ones alike."""
    if "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(str(message["tool_call_id"]))}
    if message.get("tool_calls"):
        calls = [{**call, "id": _short_id(str(call["id"]))} if "id" in call else call for call in message["tool_calls"]]
        message = {**message, "tool_calls": calls}
    return message


def _short_id(given: str) -> str:
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:9]
