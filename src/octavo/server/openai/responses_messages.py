"""From items to the messages of a chat template, and from what is wrong with a message back to the client's words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.server.errors import ApiError, invalid
from octavo.server.openai.responses_items import Item, cache_markers
from octavo.server.openai.wording import Wording


class Placed(NamedTuple):
    """An item of a conversation.

    Attributes:
        place: what the client calls where it stands: ``input[2]``.
        continues: it goes on with the message before it, if that is one that the model was to continue.
    """

    place: str
    item: Item
    continues: bool = False


@dataclass(slots=True)
class _Place:
    message: str
    calls: list[str] = field(default_factory=list)


class Conversation:
    """Messages made of items, in order.

    Of what the model said in one turn, reasoning, text and calls become one message. Templates show its text before its
    calls, wherever it stood. A call that was cut off was never made: it is not shown. The output of a call must follow
    the call.

    Raises:
        ApiError: an output belongs to no call (400).
    """

    def __init__(self, instructions: str | None, items: Iterable[Placed]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._places: list[_Place] = []
        self._names: dict[str, str] = {}
        if instructions is not None:
            self._begin("instructions", {"role": "system", "content": instructions})
        for placed in items:
            if placed.continues and placed.item["type"] == "message" and self._ends_open:
                self._continue(placed.item)
            else:
                _ADD[placed.item["type"]](self, placed.place, placed.item)
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "\n".join(message["reasoning_content"])

    def in_clients_words(self, error: ApiError, wording: Wording) -> ApiError:
        """The same error about items and fields that the client sent, instead of what the engine was given."""
        param = None if error.param is None else self._renamed(error.param)
        message = self._renamed(error.message)
        renamed = ApiError(error.kind, message, param=param, code=error.code, retry_after=error.retry_after)
        return wording.of(renamed)

    def _renamed(self, text: str) -> str:
        return _FUNCTION.sub(r"\1", _MESSAGE.sub(self._place, text))

    def _place(self, match: re.Match[str]) -> str:
        number, call, rest = int(match[1]), match[2], match[3]
        if number >= len(self._places):
            return match[0]
        place = self._places[number]
        if call is not None and int(call) < len(place.calls):
            return place.calls[int(call)] + rest
        return place.message + (rest if place.message.startswith("input[") else "")

    @property
    def _ends_open(self) -> bool:
        last = self.messages[-1] if self.messages else {}
        return last.get("role") == "assistant" and "tool_calls" not in last

    def _continue(self, item: Item) -> None:
        last, text = self.messages[-1], "".join(part["text"] for part in item["content"])
        if isinstance(last["content"], str):
            last["content"] += text
        else:
            last["content"][-1]["text"] += text

    def _begin(self, place: str, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._places.append(_Place(place))

    def _message(self, place: str, item: Item) -> None:
        said = _said(item["content"])
        role = "system" if item["role"] == "developer" else item["role"]  # the later name of the same
        last = self.messages[-1] if self.messages else {}
        if role == "assistant" and (_is_thought(last) or "tool_calls" in last):
            last["content"] = _joined(last["content"], said.pop("content"))
            last.update(said)
            self._places[-1].message = place
        else:
            self._begin(place, {"role": role, **said})

    def _reasoning(self, place: str, item: Item) -> None:
        text = "\n".join(part["text"] for part in item["content"] or item["summary"])
        last = self.messages[-1] if self.messages else {}
        if not text:
            return
        if _is_thought(last):
            last["reasoning_content"].append(text)  # joined when all are there
        else:
            self._begin(place, {"role": "assistant", "content": "", "reasoning_content": [text]})

    def _call(self, place: str, item: Item) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._begin(place, {"role": "assistant", "content": ""})
        if item["status"] == "incomplete":
            return
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(call)
        self._places[-1].calls.append(place)
        self._names[item["call_id"]] = item["name"]

    def _output(self, place: str, item: Item) -> None:
        call_id = item["call_id"]
        if call_id not in self._names:
            raise invalid(
                f"{place}.call_id: no function_call before it has the call_id {call_id!r}", f"{place}.call_id"
            )
        output = item["output"]
        said = {"content": output} if isinstance(output, str) else _said(output)
        self._begin(place, {"role": "tool", "tool_call_id": call_id, "name": self._names[call_id], **said})


_ADD = {
    "message": Conversation._message,
    "reasoning": Conversation._reasoning,
    "function_call": Conversation._call,
    "function_call_output": Conversation._output,
}
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\](?:\.function)?)?((?:\.\w+|\[\d+\])*)")
_FUNCTION = re.compile(r"\b(tools\[\d+\])\.function\b")


def _is_thought(message: dict[str, Any]) -> bool:
    """Whether it is reasoning of which nothing came yet."""
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def _joined(first: Any, second: Any) -> str | list[dict[str, Any]]:
    """Both contents as parts of one, or the only one that holds anything. ``first`` may be used up for it."""
    if not first or not second:
        return second or first or ""
    parts, more = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second))
    parts.extend(more)
    return parts


def _said(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """``content``, and beside it the breakpoints of what is not a list of parts."""
    if len(parts) == 1:
        return {"content": parts[0]["text"], **cache_markers(parts[0])}
    return {"content": [{"type": "text", "text": part["text"], **cache_markers(part)} for part in parts]}
