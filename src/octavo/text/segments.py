"""Which part of a rendered conversation is which: tools, system blocks, messages.

A template is a program, so where a part ends is found by running it again on less: the part ends where the
two texts stop being equal. Parts are taken in the order of breakpoints (tools, system, messages), each from
where the one before it ended, so a boundary covers its own part and all parts before it::

    <|system|>Be brief. Tools: {...A...} {...B...}<|end|><|user|>Hi<|end|><|assistant|>
    |-------------- tool 0 --------------| tool 1 |sys. 0|-- message 1 ---|

Here the template writes the system text before the tools, so what covers a tool covers that text too, and
what covers the system block covers all tools. The generation prompt belongs to no part.

No boundary lies after that of a later message. Where a template rewrites earlier parts in the light of later
ones (drops old reasoning, moves the tools to the last message), boundaries come out earlier, down to nothing:
what follows them does depend on what comes later, so no cache could have kept it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from octavo.errors import TemplateError
from octavo.text.common_prefix import common_prefix
from octavo.text.messages import Message, leading_system, text_parts, with_parts

UNKNOWN = -1

Kind = Literal["tool", "system", "message"]
Render = Callable[[list[Message], list[dict[str, Any]] | None, bool], str]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the prompt: characters ``[start_char, end_char)``, tokens ``[start_token, end_token)``.

    ``index`` counts tools; text blocks of the leading system messages; or is the message's place in the list
    given. A token boundary is the last one at or before its character offset, so a token that straddles two
    parts belongs to the later one.
    """

    kind: Kind
    index: int
    start_char: int
    end_char: int
    start_token: int
    end_token: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was rendered, and how to render something like it: ``render(messages, tools, whole)``.

    ``whole``: end as the original did (generation prompt, or an open last message); else after the last
    message.
    """

    text: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    render: Render
    ends_open: bool


def find_segments(conversation: Conversation, offsets: Sequence[tuple[int, int]]) -> list[Segment]:
    """Cut the conversation into its parts; ``offsets`` are the characters each token covers.

    Renders once per message and tool and twice per system block. Cheap beside a forward pass, dear beside a
    render.
    """
    finder = _BoundaryFinder(conversation)
    leading, system_ends = finder.system_ends()
    parts: list[tuple[Kind, int, int]] = []
    parts += [("tool", index, end) for index, end in enumerate(finder.tool_ends())]
    parts += [("system", index, end) for index, end in enumerate(system_ends)]
    head = len(parts)
    following = range(leading, len(conversation.messages))
    parts += [("message", index, finder.message_end(index)) for index in following]
    ends = [end for _, _, end in parts]
    boundaries = monotone([*accumulate(ends[:head], max), *ends[head:]])
    # A token shared by several characters' tokens covers them all, hence the running maximum.
    token_ends = list(accumulate((end for _, end in offsets), max))
    tokens = [bisect_right(token_ends, boundary) for boundary in boundaries]
    starts = zip([0, *boundaries[:-1]], [0, *tokens[:-1]], strict=True)
    return [
        Segment(kind, index, start_char, end_char, start_token, end_token)
        for (kind, index, _), (start_char, start_token), end_char, end_token in zip(
            parts, starts, boundaries, tokens, strict=True
        )
    ]


class _BoundaryFinder:
    """Character offsets where parts end; ``UNKNOWN`` where the template cannot be run on less."""

    def __init__(self, conversation: Conversation) -> None:
        self._text = conversation.text
        self._messages = conversation.messages
        self._tools = conversation.tools
        self._render = conversation.render
        self._ends_open = conversation.ends_open

    def tool_ends(self) -> list[int]:
        """A tool ends where the text would go on differently without the tools after it.

        The last one: where the text would go on differently if it stood there twice.
        """
        tools = self._tools
        if not tools:
            return []
        last = self._shared(self._messages, [*tools, tools[-1]], whole=True)
        if last == len(self._text):  # the template shows no tools
            return [0] * len(tools)
        ends = [self._shared(self._messages, tools[: count + 1], whole=True) for count in range(len(tools) - 1)]
        return [*ends, last]

    def system_ends(self) -> tuple[int, list[int]]:
        """How many system messages lead, and where each of their text blocks ends."""
        ends: list[int] = []
        leading = leading_system(self._messages)
        for index in range(leading):
            blocks = len(text_parts(self._messages[index]))
            ends += [self._text_end(index, block) for block in range(blocks)]
            if blocks:
                # Its last block ends with its message, also where a template moves that into another turn.
                ends[-1] = max(ends[-1], self.message_end(index))
        return leading, ends

    def message_end(self, index: int) -> int:
        """A message ends where the text would go on differently without the messages after it."""
        if index == len(self._messages) - 1 and self._ends_open:
            return len(self._text)
        return self._shared(self._messages[: index + 1], self._tools, whole=False)

    def _text_end(self, index: int, block: int) -> int:
        """Where a system block's text ends: where the rest would move if it were longer."""
        message = self._messages[index]
        parts = text_parts(message)[: block + 1]
        ends = []
        for probe in ("A", "B"):
            longer = with_parts(message, [*parts[:-1], parts[-1] + probe])
            changed = [*self._messages[:index], longer, *self._messages[index + 1 :]]
            ends.append(self._shared(changed, self._tools, whole=True))
        return min(ends)

    def _shared(self, messages: list[Message], tools: list[dict[str, Any]] | None, whole: bool) -> int:
        try:
            return common_prefix(self._text, self._render(messages, tools, whole))
        except TemplateError:
            return UNKNOWN


def monotone(ends: list[int]) -> list[int]:
    """No boundary after a later one: of two that disagree the earlier offset is safe. An unknown one adds
    nothing to the boundary before it.
    """
    limit = max(ends, default=0)
    for place in range(len(ends) - 1, -1, -1):
        if ends[place] != UNKNOWN:
            limit = ends[place] = min(ends[place], limit)
    for place, end in enumerate(ends):
        if end == UNKNOWN:
            ends[place] = ends[place - 1] if place else 0
    return ends
