"""Named caches: beginnings of prompts that clients keep under a name, each tenant's apart."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from octavo.errors import shown
from octavo.server.errors import ApiError, ErrorKind, invalid

_PREFIX = "caches/"
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
