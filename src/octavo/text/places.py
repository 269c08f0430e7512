"""Where single places of a conversation end, in tokens: the breakpoints of a request.

:mod:`octavo.text.segments` says where everything ends, at the cost of a render for each message. Here only what is
asked for is looked up, with two renders for each place, and down to parts of a message and single calls.

A place ends where the text stops being the same whatever comes after it. To find out, what comes after it is
changed: everything is left out; or the place's text is made longer; or another turn follows instead::

    <|user|>Read this:           <- rendered now: part 0, part 1
    <|user|>Read this:X          <- part 0 made longer, without part 1: it ends before the X
    <|user|>Read this:X<|end|><|assistant|>X<|end|><|user|>X  <- and nothing of it moves when talk goes on

The last one costs a template its boundary where it rewrites earlier parts in the light of a later turn: drops
reasoning, moves the tools to what the user said last. Within a turn (calls, their results, the reply) such a template
rewrites nothing; ``within_turn`` asks for the boundary that lasts as long as that.

System text is taken as it is where tools are concerned: many templates write it before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from octavo.errors import InvalidRequestError, TemplateError
from octavo.text.common_prefix import common_prefix
from octavo.text.cuts import LONGEST_MARK, TokenCuts
from octavo.text.messages import Message, leading_system, text_parts, with_parts
from octavo.text.segments import UNKNOWN, Conversation, Kind, monotone

_TOOL, _SYSTEM, _MESSAGE = range(3)
_PART, _CALL, _WHOLE = range(3)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a conversation, as :class:`octavo.text.segments.Segment` counts: a tool; a text block of the leading
    system messages; a message by its place in the list given.

    Of a message, ``part`` is one of its texts as :func:`octavo.text.messages.text_parts` counts, ``call`` one of an
    assistant's ``tool_calls``; with neither the whole message is meant.
    """

    kind: Kind
    index: int
    part: int | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Spot:
    """A place by what ends there; they sort as prompts have them. ``index`` is a tool's or a message's."""

    stage: int
    index: int
    step: int = _WHOLE
    number: int = 0


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a changed conversation has in common with this one: characters, and what follows them there."""

    end: int
    rest: str


class PlaceFinder:
    """Finds ends in one conversation and remembers what it has rendered for them."""

    def __init__(self, conversation: Conversation, cuts: TokenCuts) -> None:
        self._conversation = conversation
        self._cuts = cuts
        self._leading = leading_system(conversation.messages)
        self._found: dict[tuple[str, _Spot], _Shared | None] = {}
        self._letter = _unused_letter(conversation.text)

    def ends(self, places: Sequence[Place], within_turn: bool) -> list[int]:
        """Tokens up to the end of each place; see :meth:`octavo.text.chat.RenderedChat.ends`."""
        spots = [self._spot(place) for place in places]
        ordered = sorted(set(spots))
        ends = [self._end(spot, within_turn) for spot in ordered]
        head = sum(spot.stage != _MESSAGE for spot in ordered)
        known = dict(zip(ordered, monotone([*accumulate(ends[:head], max), *ends[head:]]), strict=True))
        return [known[spot] for spot in spots]

    def text_ends(self, places: Sequence[Place]) -> list[int]:
        """As :meth:`ends`, but not beyond the text itself; see :meth:`octavo.text.chat.RenderedChat.text_ends`."""
        ends = self.ends(places, within_turn=False)
        return [self._text_end(place, end) for place, end in zip(places, ends, strict=True)]

    def _text_end(self, place: Place, end: int) -> int:
        """What is written behind the text, up to ``end``, is left out. A text that is not found was changed by the
        template, and nothing is left out.
        """
        spot = self._spot(place)
        is_text = place.part is not None or place.kind == "system"
        if not (is_text and spot.step == _WHOLE and end):
            return end
        text = text_parts(self._conversation.messages[spot.index])[-1].strip()
        start = self._conversation.text.rfind(text, 0, self._cuts.char(end))
        return end if start < 0 else min(end, self._cuts.settled(start + len(text)))

    def _spot(self, place: Place) -> _Spot:
        messages, tools = self._conversation.messages, self._conversation.tools or []
        if place.kind == "tool":
            _check(place, place.index, len(tools), "tools")
            return _Spot(_TOOL, place.index)
        if place.kind == "system":
            blocks = [(at, part) for at in range(self._leading) for part in range(len(text_parts(messages[at])))]
            _check(place, place.index, len(blocks), "system blocks")
            return self._message_spot(*blocks[place.index], None)
        _check(place, place.index, len(messages), "messages")
        if place.part is not None:
            _check(place, place.part, len(text_parts(messages[place.index])), "text parts")
        elif place.call is not None:
            _check(place, place.call, len(messages[place.index].get("tool_calls", ())), "tool calls")
        return self._message_spot(place.index, place.part, place.call)

    def _message_spot(self, index: int, part: int | None, call: int | None) -> _Spot:
        """What nothing of its message follows is the whole message."""
        message = self._conversation.messages[index]
        calls = len(message.get("tool_calls", ()))
        stage = _SYSTEM if index < self._leading else _MESSAGE
        if part is not None and (calls or part < len(text_parts(message)) - 1):
            return _Spot(stage, index, _PART, part)
        if part is None and call is not None and call < calls - 1:
            return _Spot(stage, index, _CALL, call)
        return _Spot(stage, index)

    def _end(self, spot: _Spot, within_turn: bool) -> int:
        """Tokens up to its end, or ``UNKNOWN``."""
        if spot.stage == _TOOL:
            return self._tool_end(spot)
        lasting = spot.stage == _SYSTEM or not within_turn
        if spot.step == _PART:
            return self._part_end(spot, lasting)
        if spot.step == _CALL:
            return self._cut([self._alone(spot), self._next_turn(spot) if lasting else None])
        end = self._message_end(spot, lasting)
        parts = text_parts(self._conversation.messages[spot.index])
        if parts and (end == UNKNOWN or spot.stage == _SYSTEM) and not self._is_shown(parts[-1], spot):
            # The template cannot end with it, or moves it into another turn.
            return max(end, self._part_end(_Spot(spot.stage, spot.index, _PART, len(parts) - 1), lasting))
        return end

    def _tool_end(self, spot: _Spot) -> int:
        """Where the text would go on differently without the tools after it; the last one: if it stood there twice."""
        messages, tools = self._conversation.messages, self._conversation.tools or []
        others = tools[: spot.index + 1] if spot.index < len(tools) - 1 else [*tools, tools[-1]]
        now = self._shared("tools", spot, messages, others, whole=True)
        if now is None:
            return UNKNOWN
        if now.end == len(self._conversation.text):  # the template shows no tools
            return 0
        another = [*messages[: self._leading], self._says("user")]
        return self._cut([now, self._shared("next turn", spot, another, others)])

    def _message_end(self, spot: _Spot, lasting: bool) -> int:
        if spot.index == len(self._conversation.messages) - 1 and self._conversation.ends_open:
            return self._cuts.settled(len(self._conversation.text))
        alone = self._alone(spot)
        if alone is None:
            return UNKNOWN
        if lasting:
            return self._cut([alone, self._next_turn(spot)], between_messages=True)
        is_result = self._conversation.messages[spot.index]["role"] == "tool"
        another = self._shared("result", spot, self._up_to(spot, self._result(spot))) if is_result else None
        return self._cut([alone, another], between_messages=True)

    def _part_end(self, spot: _Spot, lasting: bool) -> int:
        """Where the text would go on differently if it were longer."""
        messages = self._conversation.messages
        longer = _longer(messages[spot.index], spot.number, self._letter)
        changed = [*messages[: spot.index], longer, *messages[spot.index + 1 :]]
        now = self._shared("longer", spot, changed, self._conversation.tools, whole=True)
        # What came before a reply may be told, its reasoning, as long as nothing comes after it.
        ends_there = lasting and messages[spot.index]["role"] == "assistant"
        return self._cut(
            [
                now,
                self._next_turn(spot) if lasting or now is None else None,
                self._alone(spot) if ends_there else None,
            ]
        )

    def _is_shown(self, text: str, spot: _Spot) -> bool:
        """Whether the text of a message is inside what ends with that message."""
        alone = self._alone(spot)
        return alone is not None and text.strip() in self._conversation.text[: alone.end]

    def _alone(self, spot: _Spot) -> _Shared | None:
        """With nothing after it."""
        return self._shared("alone", spot, self._up_to(spot))

    def _next_turn(self, spot: _Spot) -> _Shared | None:
        """With another turn after it, the first that the template takes there."""
        role = self._conversation.messages[spot.index]["role"]
        asked, answered = self._says("user"), self._says("assistant")
        turns = {"user": [[answered, asked]], "tool": [[*self._result(spot), asked], [asked], [answered, asked]]}
        for number, turn in enumerate(turns.get(role, [[asked], [answered, asked]])):
            shared = self._shared(f"next turn {number}", spot, self._up_to(spot, turn))
            if shared is not None:
                return shared
        return None

    def _up_to(self, spot: _Spot, following: Sequence[Message] = ()) -> list[Message]:
        """The conversation to the end of a message; or into it, up to a call, or a part that is longer."""
        messages = self._conversation.messages
        message = messages[spot.index]
        if spot.step == _CALL:
            message = {**message, "tool_calls": message["tool_calls"][: spot.number + 1]}
        elif spot.step == _PART:
            message = _longer(message, spot.number, self._letter)
            message = {key: value for key, value in message.items() if key != "tool_calls"}
        return [*messages[: spot.index], message, *following]

    def _says(self, role: str) -> Message:
        return {"role": role, "content": self._letter}

    def _result(self, spot: _Spot) -> list[Message]:
        return [{**self._conversation.messages[spot.index], "content": self._letter}]

    def _cut(self, shared: Sequence[_Shared | None], between_messages: bool = False) -> int:
        """Tokens in all of them; ``UNKNOWN`` if there are none. ``between_messages``: what follows is the template's
        own, so that where it begins with a special token it always does.
        """
        known = [one for one in shared if one is not None]
        if not known:
            return UNKNOWN
        end = min(one.end for one in known)
        rests = [one.rest for one in known if one.end == end]
        if between_messages and self._cuts.between_marks(end, rests):
            return self._cuts.before(end)
        return self._cuts.settled(end)

    def _shared(
        self,
        name: str,
        spot: _Spot,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        whole: bool = False,
    ) -> _Shared | None:
        """What is in common with these messages and tools (by default the conversation's own); ``None`` if the
        template refuses them. Rendered once.
        """
        key = (name, spot)
        if key not in self._found:
            try:
                text = self._conversation.render(messages, tools or self._conversation.tools, whole)
            except TemplateError:
                self._found[key] = None
            else:
                end = common_prefix(self._conversation.text, text)
                self._found[key] = _Shared(end, text[end : end + LONGEST_MARK])
        return self._found[key]


def _longer(message: Message, part: int, letter: str) -> Message:
    parts = text_parts(message)[: part + 1]
    return with_parts(message, [*parts[:-1], parts[-1] + letter])


def _unused_letter(text: str) -> str:
    """One that the text does not have, so that it cannot be taken for what follows."""
    used = set(text)
    return next((letter for letter in _LETTERS if letter not in used), None) or next(
        chr(code) for code in range(0x4E00, 0x110000) if chr(code) not in used and not 0xD800 <= code < 0xE000
    )


def _check(place: Place, index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise InvalidRequestError(f"{place} is not in this conversation: it has {count} {what} there", param="places")
