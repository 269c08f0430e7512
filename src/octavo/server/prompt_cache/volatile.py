"""Volatile lines: what some clients put at the start of a system prompt, another one each time.

Such a line would make every prompt a new one from its first token on. Which lines are meant is for the server's
configuration to say, for the model is not shown them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.server.prompt_cache.caching import Mark
from octavo.server.requests import ChatRequest
from octavo.text.messages import SYSTEM_ROLES
from octavo.text.places import Place


def without_volatile_lines(text: str, prefixes: Sequence[str]) -> str:
    """``text`` without the lines at its beginning that begin with one of ``prefixes``."""
    beginnings, start = tuple(prefixes), 0
    while start < len(text) and text.startswith(beginnings, start):
        start = text.find("\n", start) + 1 or len(text)
    return text[start:]


def without_volatile_system_lines(request: ChatRequest, prefixes: Sequence[str]) -> ChatRequest:
    """``request`` without such lines where its system text begins.

    A block of which nothing is left is left out, and so is a message. A mark on one stands on the block before, which
    is the last tool, or is left out too. Positions stay as the client counts them.
    """
    num_blocks = num_messages = 0  # that are left out
    opening: list[dict[str, Any]] = []
    for message in request.messages if prefixes else ():
        if message.get("role") not in SYSTEM_ROLES:
            break
        texts = _texts(message)
        kept = _without(texts, prefixes)
        num_blocks += len(texts) - len(kept)
        if kept == texts:
            break
        num_messages += 1
        if kept:
            opening = [{**message, "content": _content(message, kept)}]
            break
    if num_messages == 0 or num_messages - len(opening) == len(request.messages):
        return request
    gone = num_messages - len(opening)
    marks = [_moved(mark, num_blocks, gone, len(request.tools)) for mark in request.caching.marks]
    caching = replace(request.caching, marks=[mark for mark in marks if mark is not None])
    return replace(request, messages=[*opening, *request.messages[num_messages:]], caching=caching)


def _without(texts: list[str], prefixes: Sequence[str]) -> list[str]:
    for index, text in enumerate(texts):
        shorter = without_volatile_lines(text, prefixes)
        if shorter or shorter == text:
            return [shorter, *texts[index + 1 :]]
    return []


def _texts(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]


def _content(message: dict[str, Any], kept: list[str]) -> str | list[dict[str, Any]]:
    """``kept``: the last texts of ``message``, of which the first may be shorter than it was."""
    content = message["content"]
    if isinstance(content, str):
        return kept[0]
    first, *rest = content[-len(kept) :]
    return [{**first, "text": kept[0]}, *rest]


def _moved(mark: Mark, num_blocks: int, num_messages: int, num_tools: int) -> Mark | None:
    place = mark.place
    if place.kind == "message":
        return replace(mark, place=replace(place, index=place.index - num_messages))
    if place.kind == "tool":
        return mark
    if place.index >= num_blocks:
        return replace(mark, place=Place("system", place.index - num_blocks))
    return replace(mark, place=Place("tool", num_tools - 1)) if num_tools else None
