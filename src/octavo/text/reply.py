"""ReplyParser: a reply's text as it arrives, taken apart into reasoning, text and tool calls."""

from __future__ import annotations

from octavo.text.reasoning import ReasoningParser
from octavo.text.reply_parts import (
    Reasoning,
    ReplyPart,
    Text,
    ToolArguments,
    ToolCallEnd,
    ToolCallStart,
    joined,
)
from octavo.text.tools.call_parser import CallParser
from octavo.text.tools.tool_format import ToolFormat

__all__ = [
    "Reasoning",
    "ReplyParser",
    "ReplyPart",
    "Text",
    "ToolArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "joined",
]


class ReplyParser:
    """Takes one reply apart. It keeps state.

    Pieces of any size give the same parts, but for where a text is cut (see
    :func:`octavo.text.reply_parts.joined`). Nothing of a marker is said as text, and text that may begin one waits
    until that is decided. Nothing is lost and nothing is raised: what claims to be a call and is none is said as
    text, as it came; where arguments were already given they stand, and their call ends where they went wrong.
    """

    def __init__(self, *, tool_format: ToolFormat | None, reasoning: bool, in_reasoning: bool = False) -> None:
        """``tool_format``: look for calls of this form. ``reasoning``: look for a block of reasoning first;
        ``in_reasoning``: the prompt ended inside of one.
        """
        self._calls = None if tool_format is None else CallParser(tool_format)
        self._reasoning = ReasoningParser(in_reasoning) if reasoning else None

    @property
    def in_reasoning(self) -> bool:
        """Whether what has come so far ends inside of a block of reasoning."""
        return self._reasoning is not None and self._reasoning.is_inside

    def feed(self, text: str) -> list[ReplyPart]:
        """What one more piece makes certain."""
        if self._reasoning is None:
            if self._calls is None:
                return [Text(text)] if text else []
            return self._calls.feed(text)
        parts: list[ReplyPart] = []
        answer = self._reasoning.feed(text, parts)
        if self._reasoning.is_over:
            self._reasoning = None
        if answer:
            parts += self._answer(answer)
        return parts

    def finish(self) -> list[ReplyPart]:
        """What was held back. Call it once, after the last piece."""
        parts: list[ReplyPart] = []
        answer = "" if self._reasoning is None else self._reasoning.finish(parts)
        if answer:
            parts += self._answer(answer)
        if self._calls is not None:
            parts += self._calls.finish()
        return parts

    def _answer(self, text: str) -> list[ReplyPart]:
        return [Text(text)] if self._calls is None else self._calls.feed(text)
