"""Reasoning: what some models write between ``<think>`` and ``</think>`` before they answer."""

from __future__ import annotations

from octavo.text.reply_parts import Reasoning, ReplyPart

THINK, END_THINK = "<think>", "</think>"
_NEWLINE = "\n"


def ends_open(prompt: str, continued: str) -> bool:
    """Whether a prompt ends inside a block: begun by the template at its very end, or in the message continued."""
    return prompt.rstrip().endswith(THINK) or continued.rfind(THINK) > continued.rfind(END_THINK)


class ReasoningParser:
    """Tells reasoning from the answer that follows it. One for each reply; it keeps state.

    A block counts where the reply begins with it, or is inside it from the start. Line breaks at its edges, and
    between it and the answer, belong to the block.
    """

    def __init__(self, inside: bool) -> None:
        """``inside``: the prompt ends in an open block."""
        self._inside = inside
        self._held = ""
        self._at_edge = inside  # nothing of this block was said
        self._closed = False
        self.is_over = False

    @property
    def is_inside(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._inside

    def feed(self, text: str, parts: list[ReplyPart]) -> str:
        """Append reasoning to ``parts``; return what belongs to the answer. Once :attr:`is_over`, all of it does."""
        rest = self._held + text
        self._held = ""
        if not self._inside and not self._closed:
            rest = self._look_for_beginning(rest)
        if self._inside:
            rest = self._read(rest, parts)
        if self._closed:
            rest = rest.lstrip(_NEWLINE)
            self.is_over = bool(rest)
        return rest

    def finish(self, parts: list[ReplyPart]) -> str:
        """The end: what was held back as the beginning of a marker."""
        held, self._held = self._held, ""
        if self._inside:
            self._think(held.rstrip(_NEWLINE), parts)
            return ""
        return held

    def _look_for_beginning(self, text: str) -> str:
        begun = text.lstrip()
        if begun.startswith(THINK):
            self._inside = self._at_edge = True
            return begun[len(THINK) :]
        if THINK.startswith(begun):
            self._held = text
            return ""
        self.is_over = True
        return text

    def _read(self, text: str, parts: list[ReplyPart]) -> str:
        thought, marker, answer = text.partition(END_THINK)
        if marker:
            self._inside, self._closed = False, True
            self._think(thought.rstrip(_NEWLINE), parts)
            return answer
        keep = next((size for size in range(len(END_THINK) - 1, 0, -1) if text.endswith(END_THINK[:size])), 0)
        certain = text[: len(text) - keep].rstrip(_NEWLINE)
        self._held = text[len(certain) :]
        self._think(certain, parts)
        return ""

    def _think(self, text: str, parts: list[ReplyPart]) -> None:
        if self._at_edge:
            text = text.lstrip(_NEWLINE)
        if text:
            self._at_edge = False
            parts.append(Reasoning(text))
