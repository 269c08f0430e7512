"""Named caches from their creation to their end, and what the engine keeps of them meanwhile.

The engine keeps a cache's blocks softly: what a request needs it gets. What was evicted so is computed again by the
next request that begins with the cache, and kept again from then on.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.server.calls import Call, Caller
from octavo.server.errors import invalid
from octavo.server.prompt_cache.entries import digests
from octavo.server.prompt_cache.named import Content, NamedCache
from octavo.server.service import Service
from octavo.text.common_prefix import common_prefix


@dataclass(frozen=True, slots=True)
class Lifetime:
    """For ``ttl`` seconds from when it is asked, or until ``end`` (seconds since 1970)."""

    ttl: float = 0.0
    end: float | None = None

    def left(self, now: float) -> float:
        """Seconds from ``now``, which is in seconds since 1970."""
        return self.ttl if self.end is None else max(0.0, self.end - now)


async def create(
    service: Service, call: Call, model: str, content: Content, lifetime: Lifetime, display_name: str | None
) -> NamedCache:
    """Compute ``content`` and keep it under a name. Whatever fails leaves nothing.

    Where there is a disk tier, its blocks are durable there when this returns.

    Raises:
        ApiError: it cannot be rendered or computed, is too long or too short, or there is no room for it; or this
            server caches nothing.
    """
    if not service.engine.assembly.engine.config.enable_prefix_caching:
        raise invalid("this server was started without prefix caching, so it can keep nothing", None)
    caller = call.caller or Caller()
    shown, token_ids = await service.beginning(call, content)
    _check_length(service, len(token_ids))
    with service.caches.reserved(caller.tenant, len(token_ids)) as add:
        await service.warm(call, model, shown, token_ids, max(lifetime.left(time.time()), 1.0))
        await service.engine.store_cached(token_ids, cache_salt=caller.cache_salt)
        now = time.time()
        left = lifetime.left(now)
        cache = NamedCache(
            tenant=caller.tenant,
            salt=caller.cache_salt,
            model=model,
            display_name=display_name,
            content=shown,
            token_ids=array("i", token_ids),
            created=now,
            expires=service.clock() + left,
            expire_time=now + left,
        )
        add(cache)
    return cache


async def set_end(service: Service, cache: NamedCache, lifetime: Lifetime) -> None:
    """Have ``cache`` expire then, sooner or later than it would have."""
    now = time.time()
    left = lifetime.left(now)
    is_longer = service.clock() + left >= cache.expires
    service.caches.set_end(cache, service.clock() + left, now + left)
    if is_longer:
        await service.engine.retain(cache.token_ids, left, cache_salt=cache.salt)
    else:
        await _release(service, cache)


async def delete(service: Service, tenant: str, name: str) -> NamedCache:
    """Forget a cache, and keep its blocks no longer than others want them.

    Raises:
        ApiError: there is none of this name (404).
    """
    cache = service.caches.delete(tenant, name)
    await _release(service, cache)
    return cache


async def num_in_memory(service: Service, cache: NamedCache) -> int:
    """How many of its tokens a request that begins with ``cache`` would not have to compute."""
    beyond = [*cache.token_ids, cache.token_ids[-1]]  # of a whole prompt the last token is always computed
    return await service.engine.lookup(beyond, cache_salt=cache.salt)


def _check_length(service: Service, num_tokens: int) -> None:
    minimum = max(1, service.min_cache_tokens)
    if not num_tokens:
        raise invalid("the chat template writes nothing of this that stays whatever follows; it cannot be cached", None)
    if num_tokens < minimum:
        raise invalid(f"the cache would have {num_tokens:,} tokens; at least {minimum:,} are cached here", None)


async def _release(service: Service, cache: NamedCache) -> None:
    """The engine knows how long blocks are kept, and not for whom: after a release it is told again what others want
    of the same blocks.
    """
    engine, salt, now = service.engine, cache.salt, service.clock()
    await engine.release_retained(cache.token_ids, cache_salt=salt)
    for tokens, expires in list(_wanted(service, cache)):
        if expires > now:
            await engine.retain(tokens, expires - now, cache_salt=salt)


def _wanted(service: Service, gone: NamedCache) -> Iterator[tuple[array[int], float]]:
    """Beginnings of ``gone`` that are kept for something else, itself until its new end included; and until when."""
    for cache in service.caches.under(gone.salt):
        shared = common_prefix(cache.token_ids, gone.token_ids)
        if shared:
            yield cache.token_ids[:shared], cache.expires
    entries: dict[tuple[int, bytes], float] = {}
    for entry in service.entries.live(gone.salt):
        tokens = (entry.num_tokens, entry.digest)
        entries[tokens] = max(entries.get(tokens, 0.0), entry.expires)
    for tokens in digests(gone.token_ids, {num_tokens for num_tokens, _ in entries}):
        if tokens in entries:
            yield gone.token_ids[: tokens[0]], entries[tokens]
