"""Items of a response's input: what a client may send, and the one form they are kept, listed and rendered in."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from octavo.server.openai.fields import Markable, refused, text_or_list, told_apart
from octavo.server.validation import Body
from octavo.text.messages import CACHE_MARKERS

Item = dict[str, Any]
"""An item in the form in which SDKs read it: every one has an ``id``, and content is a list of parts."""

_ID = Annotated[str, Field(min_length=1, max_length=256)]
_Status = Literal["in_progress", "completed", "incomplete"] | None


class InputText(Markable):
    type: Literal["input_text"]
    text: str


class OutputText(Body):
    """A text that a response once held, sent back as it was."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None


class Refusal(Body):
    type: Literal["refusal"]
    refusal: str


class ReasoningText(Body):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(Body):
    type: Literal["summary_text"]
    text: str


Part = Annotated[InputText | OutputText | Refusal, Field(discriminator="type")]
Content = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[Part], Field(min_length=1), Tag("(list)")],
    told_apart(text_or_list, "text or a list of parts"),
]
Output = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[Part], Tag("(list)")],
    told_apart(text_or_list, "text or a list of parts"),
]


class Message(Body):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: _ID | None = None
    status: _Status = None
    phase: Literal["commentary", "final_answer"] | None = None

    def item(self) -> Item:
        kind = "output_text" if self.role == "assistant" else "input_text"
        return {**_head(self, "msg"), "role": self.role, "content": _parts(kind, self.content)}


class FunctionCall(Body):
    type: Literal["function_call"]
    call_id: _ID
    name: _ID
    arguments: str
    id: _ID | None = None
    status: _Status = None

    def item(self) -> Item:
        return {**_head(self, "fc"), "call_id": self.call_id, "name": self.name, "arguments": self.arguments}


class FunctionCallOutput(Body):
    type: Literal["function_call_output"]
    call_id: _ID
    output: Output
    id: _ID | None = None
    status: _Status = None

    def item(self) -> Item:
        output = self.output if isinstance(self.output, str) else _parts("input_text", self.output)
        return {**_head(self, "fco"), "call_id": self.call_id, "output": output}


class Reasoning(Body):
    type: Literal["reasoning"]
    id: _ID | None = None
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: Annotated[None, refused("Reasoning is read from content; nothing here can be decrypted")] = None
    status: _Status = None

    def item(self) -> Item:
        return {
            **_head(self, "rs"),
            "summary": [{"type": "summary_text", "text": part.text} for part in self.summary or []],
            "content": [{"type": "reasoning_text", "text": part.text} for part in self.content or []],
        }


class ItemReference(Body):
    """An item that a stored response has, by its id."""

    type: Literal["item_reference"] | None = None
    id: _ID


_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _type_of(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind is None:
        kind = "item_reference" if "id" in value and "role" not in value else "message"
    return f"({kind})" if kind in _TYPES else None


InputItem = Annotated[
    Annotated[Message, Tag("(message)")]
    | Annotated[FunctionCall, Tag("(function_call)")]
    | Annotated[FunctionCallOutput, Tag("(function_call_output)")]
    | Annotated[Reasoning, Tag("(reasoning)")]
    | Annotated[ItemReference, Tag("(item_reference)")],
    told_apart(_type_of, f"an item of one of the types {', '.join(_TYPES)}"),
]
Input = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[InputItem], Tag("(list)")],
    told_apart(text_or_list, "text or a list of items"),
]


def user_message(text: str) -> Item:
    """What an ``input`` that is a text stands for."""
    return Message(role="user", content=text).item()


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _head(item: Message | FunctionCall | FunctionCallOutput | Reasoning, prefix: str) -> Item:
    return {"id": item.id or new_id(prefix), "type": item.type or "message", "status": item.status or "completed"}


def cache_markers(carrier: dict[str, Any]) -> dict[str, Any]:
    """The breakpoints that something carries, which stay on it while the conversation is kept."""
    return {name: carrier[name] for name in CACHE_MARKERS if name in carrier}


def _parts(kind: str, content: str | list[Any]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [_part(kind, content)]
    return [
        _part(kind, part.refusal)
        if isinstance(part, Refusal)
        else {**_part(kind, part.text), **cache_markers(part.model_dump(exclude_none=True))}
        for part in content
    ]


def _part(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text, "annotations": []} if kind == "output_text" else {"type": kind, "text": text}
