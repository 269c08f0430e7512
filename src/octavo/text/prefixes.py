"""What stays of a conversation when it goes on: the tokens that all its continuations share, and whether a template
leaves the past alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import TemplateError
from octavo.text.cuts import LONGEST_MARK, TokenCuts
from octavo.text.messages import Message, checked_messages
from octavo.text.reasoning import THINK
from octavo.text.segments import Render, common_prefix
from octavo.text.tokenizer import Tokenizer, check_text

_ASKED, _ASKED_OTHERWISE = {"role": "user", "content": "A"}, {"role": "user", "content": "B"}
_ANSWERED = {"role": "assistant", "content": "A"}

_PROBE_TOOL = "octavo_probe_tool"
_PROBE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _PROBE_TOOL,
            "description": "A probe.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]
_TURNS = ("one", "two", "three")


@dataclass(frozen=True, slots=True)
class PrefixStability:
    """Whether a prompt, with the reply to it, is the beginning of the next turn's prompt.

    Attributes:
        why_not: what the template does instead, as a sentence's end after "the chat template"; ``None``: it is.
    """

    why_not: str | None = None

    @property
    def is_stable(self) -> bool:
        return self.why_not is None


def shared_tokens(
    render: Render, messages: list[Message], tools: list[dict[str, Any]] | None, tokenizer: Tokenizer
) -> list[int]:
    """The token ids that every conversation begins with which begins with these messages and tools.

    Raises:
        TemplateError: the template refuses the messages, alone and with a user's message after them.
    """
    try:
        text, other = (render([*messages, asked], tools, False) for asked in (_ASKED, _ASKED_OTHERWISE))
        between_messages = False
    except TemplateError:
        if not messages:
            raise
        text, other = _alone_and_continued(render, messages, tools)
        between_messages = True
    check_text(text, "messages")
    end = common_prefix(text, other)
    encoding = tokenizer.encoding(text, add_special_tokens=False)
    ids: list[int] = encoding.ids
    cuts = TokenCuts(text, encoding, ids, tokenizer)
    stays = between_messages and cuts.between_marks(end, [other[end : end + LONGEST_MARK]])
    return ids[: cuts.before(end) if stays else cuts.settled(end)]


def stability(render: Render, with_tools: bool) -> PrefixStability:
    """Have a conversation of three turns, in which the assistant reasons, and compare each prompt with the next."""
    tools = _PROBE_TOOLS if with_tools else None
    messages = checked_messages([message for turn in _TURNS for message in _turn(turn)])
    try:
        for number, turn in enumerate(_TURNS[:-1]):
            said = 2 * number + 1
            asked = render(messages[:said], tools, True)
            replied = render(messages[: said + 1], tools, False)
            later = render(messages[: said + 2], tools, True)
            why_not = _difference(turn, asked, replied, later)
            if why_not is not None:
                return PrefixStability(why_not)
    except TemplateError as error:
        return PrefixStability(f"refuses a conversation of three turns: {error}")
    return PrefixStability()


def _alone_and_continued(
    render: Render, messages: list[Message], tools: list[dict[str, Any]] | None
) -> tuple[str, str]:
    alone = render(messages, tools, False)
    try:
        return alone, render([*messages, _ANSWERED, _ASKED], tools, False)
    except TemplateError:
        return alone, alone


def _turn(name: str) -> list[Message]:
    return [
        {"role": "user", "content": _question(name)},
        {"role": "assistant", "content": _answer(name), "reasoning_content": _reasoning(name)},
    ]


def _question(turn: str) -> str:
    return f"Octavo probe question {turn}?"


def _answer(turn: str) -> str:
    return f"Octavo probe answer {turn}."


def _reasoning(turn: str) -> str:
    return f"Octavo probe reasoning {turn}."


def _difference(turn: str, asked: str, replied: str, later: str) -> str | None:
    """What became of ``asked``, and of the reply that ``replied`` shows, in the ``later`` prompt."""
    reasoning, answer = _reasoning(turn), _answer(turn)
    reasons = reasoning in replied or asked.rstrip().endswith(THINK)
    if reasons and reasoning not in later:
        return "drops the reasoning of earlier turns"
    if answer not in later or _question(turn) not in later:
        return "leaves out earlier turns"
    # What closes the reply is not always the model's own to write: what follows its text is not compared.
    written = replied[: replied.rfind(answer) + len(answer)]
    if not later.startswith(written):
        moved = _PROBE_TOOL in written and later.find(_PROBE_TOOL) != written.find(_PROBE_TOOL)
        return "moves the tools as the conversation goes on" if moved else "rewrites earlier turns"
    if not written.startswith(asked):
        return "begins a reply otherwise than it shows it afterwards"
    return None
