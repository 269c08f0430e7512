"""What a reply is made of: text, reasoning and tool calls, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it says anything."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. ``index`` counts the calls of the reply from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A piece of the arguments' JSON text. The pieces of a call, joined, are what the model wrote."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is over: nothing more comes of its arguments."""

    index: int


ReplyPart = Text | Reasoning | ToolCallStart | ToolArguments | ToolCallEnd


def joined(parts: Iterable[ReplyPart]) -> list[ReplyPart]:
    """The same reply with neighbouring pieces of one kind in one part."""
    whole: list[ReplyPart] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, Text) and isinstance(last, Text):
            whole[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, ToolArguments) and isinstance(last, ToolArguments) and part.index == last.index:
            whole[-1] = ToolArguments(last.index, last.text + part.text)
        else:
            whole.append(part)
    return whole
