"""Messages of a chat, one model for each role, and what chat templates get of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Tag

from octavo.server.openai.fields import TEXT_ONLY, Markable, TextPart, Words, refused, text_or_list, told_apart
from octavo.server.validation import Body


class RefusalPart(Body):
    """What an assistant said when it refused. It is told to the model as text."""

    type: Literal["refusal"]
    refusal: Words


def _part(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "(refusal)" if kind == "refusal" else "(text)"


_Content = Annotated[
    Annotated[Words, Tag("(text)")] | Annotated[list[TextPart], Tag("(list)")],
    told_apart(text_or_list, "text or a list of text parts"),
]
_AssistantPart = Annotated[
    Annotated[TextPart, Tag("(text)")] | Annotated[RefusalPart, Tag("(refusal)")],
    told_apart(_part, "a text part or a refusal"),
]
_AssistantContent = Annotated[
    Annotated[Words, Tag("(text)")] | Annotated[list[_AssistantPart], Tag("(list)")],
    told_apart(text_or_list, "text or a list of text parts"),
]


class _Message(Markable):
    name: Words | None = None


class SystemMessage(_Message):
    role: Literal["system"]
    content: _Content


class DeveloperMessage(_Message):
    """The later name of a system message; templates get it as one."""

    role: Literal["developer"]
    content: _Content


class UserMessage(_Message):
    role: Literal["user"]
    content: _Content


class ToolMessage(_Message):
    role: Literal["tool"]
    tool_call_id: Words
    content: _Content


class CalledFunction(Body):
    name: Words
    arguments: Words


class CalledTool(Body):
    """``index`` is what streams have; clients leave it in."""

    id: Words
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class AssistantMessage(_Message):
    """What the model said, as :mod:`octavo.server.openai.chat_reply` tells it; reasoning under either of its names."""

    role: Literal["assistant"]
    content: _AssistantContent | None = None
    refusal: Words | None = None
    tool_calls: list[CalledTool] | None = None
    reasoning_content: Words | None = None
    reasoning: Words | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: Annotated[None, refused(TEXT_ONLY)] = None
    function_call: Annotated[None, refused("Calls are sent as tool_calls")] = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def template_messages(messages: Sequence[BaseModel]) -> list[dict[str, Any]]:
    """Messages as :func:`octavo.text.messages.checked_messages` takes them; cache markers stay where they are."""
    return [_template_message(message.model_dump(exclude_none=True)) for message in messages]


def _template_message(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "developer":
        message["role"] = "system"
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
    message.pop("annotations", None)
    content, refusal = message.get("content"), message.pop("refusal", None)
    if isinstance(content, list):
        content = [_text_part(part) for part in content]
    if refusal is not None and content:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        content = [*parts, {"type": "text", "text": refusal}]
    elif refusal is not None:
        content = refusal
    if content is not None:
        message["content"] = content
    return message


def _text_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": part["refusal"]} if part["type"] == "refusal" else part
