"""Diagnosis: what became different from one prompt to a later one that was to go on with it."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from octavo.server.prompt_cache.history import Record
from octavo.server.requests import ChatRequest
from octavo.text.common_prefix import common_prefix
from octavo.text.messages import CACHE_MARKERS, leading_system, text_parts

ChangeKind: TypeAlias = Literal["model", "tools", "system", "messages", "other", "none"]
_Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """The first thing that differs, in the order model, tools, system, messages.

    Attributes:
        kind: ``"messages"``: an earlier message is another one; ``"other"``: the texts are the same and the tokens are
            not, so the template made something else of them; ``"none"``: the one prompt goes on where the other ended,
            or would have if its answer had begun.
        num_shared: tokens that both prompts begin with.
        num_missed: tokens of the earlier prompt that the later one could have reused and did not; 0 with ``"none"``.
    """

    kind: ChangeKind
    num_shared: int
    num_missed: int


def changed(before: Record, now: Record) -> Change:
    """Compare two prompts. Takes milliseconds where they are long; changes nothing."""
    shared = common_prefix(before.prompt, now.prompt)
    kind = _kind(before, now, shared)
    missed = 0 if kind == "none" else max(0, min(len(before.prompt), len(now.prompt) - 1) - shared)
    return Change(kind, shared, missed)


def _kind(before: Record, now: Record, shared: int) -> ChangeKind:
    if before.model != now.model:
        return "model"
    if shared == min(len(before.prompt), len(now.prompt)):
        return "none"
    if before.request is None or now.request is None:
        return "messages"
    return _text_kind(before.request, now.request) or _token_kind(before, now, shared)


def _text_kind(before: ChatRequest, now: ChatRequest) -> ChangeKind | None:
    """What of the texts differs, if anything does that both have."""
    if _texts(list(map(_without_marks, before.tools))) != _texts(list(map(_without_marks, now.tools))):
        return "tools"
    first, second = _system(before.messages), _system(now.messages)
    if _texts(first) != _texts(second):
        return "system"
    pairs = list(zip(before.messages[len(first) :], now.messages[len(second) :], strict=False))
    for index, (earlier, later) in enumerate(pairs):
        is_open = index == len(pairs) - 1 and (before.continues_final_message or now.continues_final_message)
        if not (_go_on if is_open else _equal)(_plain(earlier), _plain(later)):
            return "messages"
    return None


def _token_kind(before: Record, now: Record, shared: int) -> ChangeKind:
    """All texts that both have are the same. What the shorter prompt has beyond the shared tokens may be what every
    prompt ends with: the generation prompt, or a token that what follows is merged into. Then the longer ends so too::

        ... <|user|>Hi<|end|><|assistant|><think>
        ... <|user|>Hi<|end|><|assistant|>Hello<|end|><|user|>Bye<|end|><|assistant|><think>
    """
    assert before.request is not None and now.request is not None
    lengths = len(before.request.messages), len(now.request.messages)
    shorter, longer = (before, now) if lengths[0] <= lengths[1] else (now, before)
    rest = shorter.prompt[shared:]
    if shorter.request is not None and shorter.request.continues_final_message:
        return "none" if len(rest) <= 1 else "other"
    return "none" if lengths[0] != lengths[1] and _ends_with(longer.prompt, rest) else "other"


def _ends_with(tokens: array[int], end: array[int]) -> bool:
    return len(end) <= len(tokens) and tokens[len(tokens) - len(end) :] == end


def _system(messages: list[_Message]) -> list[_Message]:
    """The leading system messages."""
    return [_plain(message) for message in messages[: leading_system(messages)]]


def _plain(message: _Message) -> _Message:
    """Without marks, and with its texts in one form."""
    plain = _without_marks(message)
    if plain.get("content") is not None:
        plain["content"] = text_parts(plain)
    return plain


def _without_marks(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in CACHE_MARKERS and value is not None}


def _equal(earlier: _Message, later: _Message) -> bool:
    return earlier == later and _texts(earlier) == _texts(later)


def _go_on(earlier: _Message, later: _Message) -> bool:
    """Whether one of them is the beginning of the other: it was left open for the model to go on with."""
    first, second = ("\n".join(message.get("content") or ()) for message in (earlier, later))
    return earlier.get("role") == later.get("role") and (first.startswith(second) or second.startswith(first))


def _texts(value: object) -> str:
    """Templates write the keys of an object in their order, so that counts too."""
    return json.dumps(value, ensure_ascii=False, default=repr)
