"""What stays of a conversation when it goes on: the tokens that all its continuations share, and whether a template
leaves the past alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import TemplateError
from octavo.text.common_prefix import common_prefix
from octavo.text.cuts import LONGEST_MARK, TokenCuts
from octavo.text.messages import Message, checked_messages
from octavo.text.reasoning import THINK
from octavo.text.segments import Render
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
        TemplateError: the template refuses the messages, alone and with whatever after them.
    """
    texts = []
    refusal: TemplateError | None = None
    for following in _continuations(messages):
        try:
            texts.append(render([*messages, *following], tools, False))
        except TemplateError as error:
            refusal = refusal or error
    if len(texts) < 2:  # the user cannot speak next
        if not messages and refusal is not None:
            raise refusal
        texts.append(render(messages, tools, False))
    text = texts[0]
    check_text(text, "messages")
    ends = [common_prefix(text, other) for other in texts[1:]]
    end = min(ends, default=len(text))
    encoding = tokenizer.encoding(text, add_special_tokens=False)
    ids: list[int] = encoding.ids
    cuts = TokenCuts(text, encoding, ids, tokenizer)
    stays = cuts.between_marks(end, [other[end : end + LONGEST_MARK] for other in texts[1:]])
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


def _continuations(messages: list[Message]) -> list[list[Message]]:
    """How a conversation may go on; not every template takes all of them."""
    following = [[_ASKED], [_ASKED_OTHERWISE], [_ANSWERED, _ASKED]]
    calls = messages[-1].get("tool_calls") if messages else None
    if calls:
        result = {"role": "tool", "content": "A", "tool_call_id": calls[0].get("id", "A")}
        following.append([result, _ASKED])
    return following


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
