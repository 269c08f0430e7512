"""/v1/caches: beginnings of prompts, computed once, kept under a name, and used by it from every endpoint."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from octavo.server import named_caches_lifecycle as lifecycle
from octavo.server.calls import Call, Caller
from octavo.server.context import Context, CurrentCall, Server
from octavo.server.errors import ApiError, invalid
from octavo.server.named_caches_schema import CreateBody, UpdateBody
from octavo.server.prompt_cache.joining import renumbered
from octavo.server.prompt_cache.named import NamedCache
from octavo.server.streaming import JSON, until_disconnect

router = APIRouter()


class CachesQuery(BaseModel):
    """A page of caches, the newest first. ``after``: the name of the last one of the page before."""

    model_config = ConfigDict(extra="forbid")

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


@router.post("/v1/caches")
async def create_cache(http: Request, server: Server, call: CurrentCall, body: CreateBody) -> Response:
    """Compute the beginning of a prompt and keep it, under a name, until it expires."""
    server.check_model(body.model)
    return JSON(await until_disconnect(http, _created(server, call, body)))


@router.get("/v1/caches")
async def list_caches(server: Server, call: CurrentCall, query: Annotated[CachesQuery, Query()]) -> Response:
    """The caches of the caller's tenant that have not expired."""
    caches = server.service.caches.of(_tenant(call))[::-1]
    begin = 0
    if query.after is not None:
        begin = next((index for index, cache in enumerate(caches, 1) if query.after in (cache.id, cache.name)), 0)
        if not begin:
            raise invalid(f"after: there is no cache {query.after!r}", "after")
    page = caches[begin : begin + query.limit]
    return JSON(
        {
            "object": "list",
            "data": await asyncio.gather(*[_told(server, cache) for cache in page]),
            "first_id": page[0].name if page else "",
            "last_id": page[-1].name if page else "",
            "has_more": begin + len(page) < len(caches),
        }
    )


@router.get("/v1/caches/{cache_id:path}")
async def retrieve_cache(server: Server, call: CurrentCall, cache_id: str) -> Response:
    """One cache, and how much of it is in memory now."""
    return JSON(await _told(server, server.service.caches.get(_tenant(call), cache_id)))


@router.patch("/v1/caches/{cache_id:path}")
async def update_cache(server: Server, call: CurrentCall, cache_id: str, body: UpdateBody) -> Response:
    """Have a cache expire later, or sooner. Nothing else of it ever changes."""
    cache = server.service.caches.get(_tenant(call), cache_id)
    await lifecycle.set_end(server.service, cache, body.lifetime())
    return JSON(await _told(server, cache))


@router.delete("/v1/caches/{cache_id:path}")
async def delete_cache(server: Server, call: CurrentCall, cache_id: str) -> Response:
    """Forget a cache. Requests that began with it before go on."""
    cache = await lifecycle.delete(server.service, _tenant(call), cache_id)
    return JSON({"name": cache.name, "object": "cache", "deleted": True})


async def _created(server: Context, call: Call, body: CreateBody) -> dict[str, Any]:
    lifetime = body.lifetime()
    try:
        with body.wording.applied():
            content = await asyncio.to_thread(body.content)
            cache = await lifecycle.create(server.service, call, body.model, content, lifetime, body.display_name)
    except ApiError as error:
        raise renumbered(error, 1 if body.has_system else 0, "system") from error
    return await _told(server, cache)


async def _told(server: Context, cache: NamedCache) -> dict[str, Any]:
    in_memory = await lifecycle.num_in_memory(server.service, cache)
    return {
        "name": cache.name,
        "object": "cache",
        "model": cache.model,
        "display_name": cache.display_name,
        "kind": cache.content.kind,
        "created_at": _time(cache.created),
        "expire_time": _time(cache.expire_time),
        "ttl": round(max(0.0, cache.expires - server.service.clock()), 3),
        "warmed": in_memory == len(cache.token_ids),
        "usage": {"total_tokens": len(cache.token_ids), "cached_tokens": in_memory},
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _tenant(call: Call) -> str:
    return (call.caller or Caller()).tenant
