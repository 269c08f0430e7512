"""Named caches: beginnings of prompts that clients keep under a name, and what a request becomes that begins with one.

::

    | tools, system text, messages of the cache | messages of the request | reply ...
    |........ NamedCache.token_ids ........|

Where the cache ends is where the tokens end that all prompts with this beginning share.
"""

from __future__ import annotations

import re
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from octavo.errors import shown
from octavo.server.errors import ApiError, ErrorKind, invalid
from octavo.server.prompt_cache.caching import Mark
from octavo.server.requests import ChatRequest
from octavo.text.messages import SYSTEM_ROLES, text_parts

_PREFIX = "caches/"
_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
_MOST_STALE = 1000
"""Ends that were changed since and are still in the heap, beside as many as there are caches."""
Kind = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Content:
    """What a cache holds: tools and messages as :class:`octavo.server.requests.ChatRequest` has them, or a text."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    text: str | None = None

    @property
    def kind(self) -> Kind:
        return "chat" if self.text is None else "text"


@dataclass(slots=True, eq=False)
class NamedCache:
    """One cache. All but the times is as it was created.

    Attributes:
        id: its name without what all names begin with.
        salt: of the cache that its tokens were computed under.
        model: as the client called it.
        token_ids: what every prompt begins with that begins with its content.
        created: seconds since 1970.
        expires: when it is gone, in seconds of the store's clock.
        expire_time: the same in seconds since 1970, as it was when it was set.
    """

    tenant: str
    salt: bytes
    model: str
    display_name: str | None
    content: Content
    token_ids: array[int]
    created: float
    expires: float
    expire_time: float
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        return _PREFIX + self.id


class NamedCaches:
    """The caches of every tenant, each tenant's apart. Lives on one event loop, so it needs no lock.

    None makes room for another. Another tenant's cache cannot be told from one that never was.

    Args:
        clock: seconds; it never goes back.
        max_caches: of one tenant.
        max_tokens: of all caches of one tenant together.
    """

    def __init__(self, clock: Callable[[], float], *, max_caches: int, max_tokens: int) -> None:
        self._clock = clock
        self._max_caches = max_caches
        self._max_tokens = max_tokens
        self._shelves: dict[str, _Shelf] = {}
        self._ends: list[tuple[float, str, str]] = []  # when caches expire, as was once true: a heap

    @contextmanager
    def reserved(self, tenant: str, num_tokens: int) -> Iterator[Callable[[NamedCache], None]]:
        """Room for one cache of ``num_tokens`` tokens, for as long as the block lasts; call what it gives to fill it.

        Raises:
            ApiError: there is no room (400).
        """
        self._expire()
        shelf = self._shelves.setdefault(tenant, _Shelf())
        try:
            self._check_room(shelf, num_tokens)
            shelf.reserved.append(num_tokens)
        except ApiError:
            self._drop_empty(tenant)
            raise

        def add(cache: NamedCache) -> None:
            shelf.caches[cache.id] = cache
            self._note_end(cache)

        try:
            yield add
        finally:
            shelf.reserved.remove(num_tokens)
            self._drop_empty(tenant)

    def get(self, tenant: str, name: str) -> NamedCache:
        """The cache of this name, with or without what all names begin with.

        Raises:
            ApiError: there is none (404).
        """
        self._expire()
        shelf = self._shelves.get(tenant)
        cache = None if shelf is None else shelf.caches.get(name.removeprefix(_PREFIX))
        if cache is None:
            raise ApiError(
                ErrorKind.NOT_FOUND,
                f"there is no cache {shown(name)}; it was not created, has expired, or was deleted",
                param="cache",
                code="cache_not_found",
            )
        return cache

    def of(self, tenant: str) -> list[NamedCache]:
        """A tenant's caches, the oldest first."""
        self._expire()
        shelf = self._shelves.get(tenant)
        return [] if shelf is None else list(shelf.caches.values())

    def under(self, salt: bytes) -> list[NamedCache]:
        """All caches whose tokens were computed under ``salt``, be they of several tenants that share it."""
        self._expire()
        return [cache for shelf in self._shelves.values() for cache in shelf.caches.values() if cache.salt == salt]

    def set_end(self, cache: NamedCache, expires: float, expire_time: float) -> None:
        """Have ``cache`` expire then."""
        cache.expires, cache.expire_time = expires, expire_time
        self._note_end(cache)

    def delete(self, tenant: str, name: str) -> NamedCache:
        """Forget a cache, and return it. Raises as :meth:`get`."""
        cache = self.get(tenant, name)
        cache.expires = self._clock()  # for requests that are about to begin with it
        self._remove(cache)
        return cache

    def _check_room(self, shelf: _Shelf, num_tokens: int) -> None:
        used, count = shelf.num_tokens, len(shelf.caches) + len(shelf.reserved)
        if count >= self._max_caches:
            raise invalid(
                f"there is no room for another cache: {count:,} of {self._max_caches:,} are in use. "
                "Delete one, or let one expire",
                None,
                code="cache_quota_exceeded",
            )
        if used + num_tokens > self._max_tokens:
            raise invalid(
                f"the cache would have {num_tokens:,} tokens; all caches together may have {self._max_tokens:,}, of "
                f"which {used:,} are in use. Delete one, or let one expire",
                None,
                code="cache_quota_exceeded",
            )

    def _note_end(self, cache: NamedCache) -> None:
        heappush(self._ends, (cache.expires, cache.tenant, cache.id))
        if len(self._ends) > 2 * sum(len(shelf.caches) for shelf in self._shelves.values()) + _MOST_STALE:
            caches = [each for shelf in self._shelves.values() for each in shelf.caches.values()]
            self._ends = [(each.expires, each.tenant, each.id) for each in caches]
            heapify(self._ends)

    def _expire(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, tenant, cache_id = heappop(self._ends)
            shelf = self._shelves.get(tenant)
            cache = None if shelf is None else shelf.caches.get(cache_id)
            if cache is not None and cache.expires <= now:  # else its time was changed since
                self._remove(cache)

    def _remove(self, cache: NamedCache) -> None:
        del self._shelves[cache.tenant].caches[cache.id]
        self._drop_empty(cache.tenant)

    def _drop_empty(self, tenant: str) -> None:
        shelf = self._shelves.get(tenant)
        if shelf is not None and not shelf.caches and not shelf.reserved:
            del self._shelves[tenant]


@dataclass(slots=True)
class _Shelf:
    """What is one tenant's. ``reserved``: tokens of each cache that is being created."""

    caches: dict[str, NamedCache] = field(default_factory=dict)
    reserved: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(cache.token_ids) for cache in self.caches.values()) + sum(self.reserved)


def check_kind(cache: NamedCache, wanted: Kind) -> None:
    """Refuse a cache that cannot begin what it is to begin.

    Raises:
        ApiError: 400.
    """
    if cache.content.kind != wanted:
        what = {"chat": "a conversation, which only conversations", "text": "a text, which only /v1/completions"}
        raise invalid(f"{cache.name} holds {what[cache.content.kind]} can begin with", "cache")


def beginning_with(cache: NamedCache, request: ChatRequest) -> ChatRequest:
    """``request`` behind the tools and messages of ``cache``.

    Raises:
        ApiError: the cache holds a text; or the request has tools or a system text of its own, or wants a tool called
            that the cache has not (400).
    """
    check_kind(cache, "chat")
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


def renumbered(error: ApiError, num_before: int, what: str) -> ApiError:
    """``error`` about the client's own messages, where ``num_before`` others stood before them: those are ``what``."""

    def own(match: re.Match[str]) -> str:
        number = int(match[1]) - num_before
        return what if number < 0 else f"messages[{number}]"

    message = _MESSAGE.sub(own, error.message)
    param = None if error.param is None else _MESSAGE.sub(own, error.param)
    return ApiError(error.kind, message, param=param, code=error.code, retry_after=error.retry_after)


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
