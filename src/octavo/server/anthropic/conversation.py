"""The API's messages as chat templates have them: turns joined, calls and their results in pairs.

::

    user       text                          user       text
    assistant  thinking, text, tool_use  ->  assistant  reasoning_content, content, tool_calls
    user       tool_result, text             tool       content, tool_call_id
                                             user       text
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.anthropic.blocks import (
    Block,
    Blocks,
    DocumentBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    shown_text,
)
from octavo.server.anthropic.fields import WRAPPED
from octavo.server.errors import invalid
from octavo.server.validation import Body
from octavo.text.messages import plain

KINDS = {
    "user": (TextBlock, DocumentBlock, SearchResultBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}
"""Which blocks may stand in a message of a role."""
_REASONING = (ThinkingBlock, RedactedThinkingBlock)


class Message(Body):
    role: Literal["user", "assistant", "system"]
    content: Blocks


Messages = Annotated[list[Message], Field(min_length=1, max_length=100_000)]


@dataclass(slots=True)
class Turn:
    """Messages of one role in a row. ``places``: where each block stands in the request; ``where``: the first one."""

    role: str
    where: str
    blocks: list[Block] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add(self, blocks: Iterable[Block], where: str) -> None:
        for index, block in enumerate(blocks):
            self.blocks.append(block)
            self.places.append(f"{where}[{index}]")

    def calls(self) -> list[ToolUseBlock]:
        return [block for block in self.blocks if isinstance(block, ToolUseBlock)]

    def results(self) -> list[ToolResultBlock]:
        return [block for block in self.blocks if isinstance(block, ToolResultBlock)]

    def messages(self) -> list[dict[str, Any]]:
        """As chat templates have it: each result is a message of its own, and what is said behind them another."""
        if self.role == "assistant":
            return [_assistant(self.blocks)]
        said = [shown_text(b) for b in self.blocks if isinstance(b, (TextBlock, DocumentBlock, SearchResultBlock))]
        results = [
            {"role": "tool", "tool_call_id": result.tool_use_id, "content": _content(result.texts())}
            for result in self.results()
        ]
        return [*results, *([{"role": self.role, "content": _content(said)}] if said else [])]


def joined_turns(messages: Sequence[Message], system: Sequence[TextBlock]) -> list[Turn]:
    """A conversation with the system text first, to be written with :meth:`Turn.messages`.

    An assistant's message at the end is continued, so an empty one is as good as none.

    Raises:
        ApiError: the API's rules are broken; the message names the place.
        InvalidRequestError: a call's input is nested too deep.
    """
    turns = _turns(messages)
    _check(turns)
    if system:
        opening = Turn("system", "system")
        opening.add(system, "system")
        if turns[0].role == "system":  # one system message, as templates want it
            said = turns.pop(0)
            opening.blocks += said.blocks
            opening.places += said.places
        turns.insert(0, opening)
    return turns


def _turns(messages: Sequence[Message]) -> list[Turn]:
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        empty_end = index == len(messages) - 1 and message.role == "assistant"
        if not message.content:
            if empty_end:
                continue
            raise invalid(
                f"{where}.content must not be empty, but in an assistant's message at the end", f"{where}.content"
            )
        if not turns or turns[-1].role != message.role:
            turns.append(Turn(message.role, where))
        turns[-1].add(message.content, f"{where}.content")
    return turns


def _check(turns: Sequence[Turn]) -> None:
    speaking = next((turn for turn in turns if turn.role != "system"), None)
    if speaking is None or speaking.role != "user":
        where = speaking.where if speaking else "messages"
        raise invalid(f"{where}: the first message must be the user's", f"{where}.role" if speaking else where)
    known: set[str] = set()
    expected: list[ToolUseBlock] = []
    for turn in turns:
        _check_kinds(turn)
        _check_results(turn, expected)
        expected = turn.calls()
        _check_calls(turn, known)
    if expected:
        raise _unanswered(turns[-1].where, [call.id for call in expected])
    last = turns[-1]
    if last.role == "assistant" and isinstance(last.blocks[-1], _REASONING):
        raise invalid(
            f"{last.places[-1]}: the last message cannot end with thinking, for it is continued", last.places[-1]
        )


def _check_kinds(turn: Turn) -> None:
    for block, place in zip(turn.blocks, turn.places, strict=True):
        if not isinstance(block, KINDS[turn.role]):
            raise invalid(f"{place}: no {block.type} block can stand in a message of the role {turn.role}", place)


def _check_calls(turn: Turn, known: set[str]) -> None:
    for block, place in zip(turn.blocks, turn.places, strict=True):
        if isinstance(block, ToolUseBlock):
            plain(block.input, f"{place}.input", WRAPPED)
            if block.id in known:
                raise invalid(f"{place}.id is taken: two tool_use blocks have the id {block.id!r}", f"{place}.id")
            known.add(block.id)


def _check_results(turn: Turn, expected: Sequence[ToolUseBlock]) -> None:
    """Every call of the turn before has one result, and results come before anything else."""
    open_ids = dict.fromkeys(call.id for call in expected)
    others = False
    for block, place in zip(turn.blocks, turn.places, strict=True):
        if not isinstance(block, ToolResultBlock):
            others = True
            continue
        if block.tool_use_id not in open_ids:
            raise invalid(
                f"{place}.tool_use_id is {block.tool_use_id!r}, which names no tool_use block of the message before, "
                "or one that has its result already",
                f"{place}.tool_use_id",
            )
        if others:
            raise invalid(f"{place}: tool_result blocks come first in their message, before text", place)
        del open_ids[block.tool_use_id]
    if open_ids:
        raise _unanswered(turn.where, list(open_ids))


def _unanswered(where: str, ids: Sequence[str]) -> Exception:
    return invalid(
        f"{where}: every tool_use block needs its tool_result in the user's message right after it; without one: "
        + ", ".join(ids),
        where,
    )


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock) and block.thinking]
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    message: dict[str, Any] = {"role": "assistant"}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if texts or not calls:
        message["content"] = _content(texts)
    if calls:
        message["tool_calls"] = calls
    return message


def _content(texts: list[str]) -> str | list[dict[str, str]]:
    """One text as it is, several as the parts they are."""
    if len(texts) < 2:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]
