"""Joining: what a request becomes that begins with a named cache.

::

    | tools, system text, messages of the cache | messages of the request | reply ...
    |........ NamedCache.token_ids ........|

Where the cache ends is where the tokens end that all prompts with this beginning share.
"""

from __future__ import annotations

import re
from dataclasses import replace

from octavo.errors import shown
from octavo.server.errors import ApiError, invalid
from octavo.server.prompt_cache.caching import Mark
from octavo.server.prompt_cache.named import Content, Kind, NamedCache
from octavo.server.requests import ChatRequest, PlainRequest
from octavo.text.messages import SYSTEM_ROLES, text_parts

_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")


def beginning_with(cache: NamedCache, request: ChatRequest) -> ChatRequest:
    """``request`` behind the tools and messages of ``cache``.

    Raises:
        ApiError: the cache holds a text; or the request has tools or a system text of its own, or wants a tool called
            that the cache has not (400).
    """
    _check_kind(cache, "chat")
    content = cache.content
    if request.tools:
        raise invalid(f"tools are those of the cache, {cache.name}; leave them out", "tools")
    if request.messages and request.messages[0].get("role") in SYSTEM_ROLES:
        raise invalid(
            f"messages[0] is a system message, but the conversation begins with {cache.name}; leave it out",
            "messages[0]",
        )
    _check_choice(cache, request)
    num_messages, num_positions = len(content.messages), _num_positions(content)
    marks = [
        Mark(
            replace(mark.place, index=mark.place.index + num_messages),
            mark.position + num_positions,
            mark.ttl,
        )
        for mark in request.caching.marks
    ]
    return replace(
        request,
        messages=[*content.messages, *request.messages],
        tools=content.tools,
        cache=None,
        caching=replace(request.caching, marks=marks, reads=True),
    )


def going_on_with(cache: NamedCache, request: PlainRequest) -> PlainRequest:
    """``request`` behind the text of ``cache``, as one text with it; or its token ids behind those of the cache.

    Raises:
        ApiError: the cache holds a conversation (400).
    """
    _check_kind(cache, "text")
    prompt = request.prompt
    joined = f"{cache.content.text}{prompt}" if isinstance(prompt, str) else [*cache.token_ids, *prompt]
    return replace(request, prompt=joined, caching=replace(request.caching, reads=True))


def renumbered(error: ApiError, num_before: int, what: str) -> ApiError:
    """``error`` about the client's own messages, where ``num_before`` others stood before them: those are ``what``."""

    def own(match: re.Match[str]) -> str:
        number = int(match[1]) - num_before
        return what if number < 0 else f"messages[{number}]"

    message = _MESSAGE.sub(own, error.message)
    param = None if error.param is None else _MESSAGE.sub(own, error.param)
    return ApiError(error.kind, message, param=param, code=error.code, retry_after=error.retry_after)


def _check_kind(cache: NamedCache, wanted: Kind) -> None:
    """Refuse a cache that cannot begin what it is to begin."""
    if cache.content.kind != wanted:
        what = {"chat": "a conversation, which only conversations", "text": "a text, which only /v1/completions"}
        raise invalid(f"{cache.name} holds {what[cache.content.kind]} can begin with", "cache")


def _check_choice(cache: NamedCache, request: ChatRequest) -> None:
    """What the dialect could not, for it does not know the tools."""
    names = [tool["function"]["name"] for tool in cache.content.tools]
    wanted = [] if request.tool_choice in ("auto", "none", "required") else [request.tool_choice]
    unknown = next((name for name in [*wanted, *(request.allowed_tools or ())] if name not in names), None)
    if unknown is not None:
        known = f"the tools of the cache are {', '.join(map(shown, names))}" if names else "the cache has no tools"
        raise invalid(f"tool_choice names {shown(unknown)}, but {known}", "tool_choice")
    if request.tool_choice == "required" and not names:
        raise invalid("tool_choice wants a tool to be called, but the cache has none", "tool_choice")


def _num_positions(content: Content) -> int:
    """How many places a breakpoint could stand on there are in it."""
    return len(content.tools) + sum(
        len(text_parts(message)) + len(message.get("tool_calls") or ()) for message in content.messages
    )
