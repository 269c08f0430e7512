"""GET /v1/cache/usage: what the caller's requests used, by ``prompt_cache_key``."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from octavo.server.calls import Caller
from octavo.server.context import CurrentCall, Server
from octavo.server.streaming import JSON

router = APIRouter()


@router.get("/v1/cache/usage")
async def cache_usage(server: Server, call: CurrentCall) -> Response:
    """Totals since the server started, of the caller's tenant alone; the key that was used last comes first."""
    tenant = (call.caller or Caller()).tenant
    totals = [{"prompt_cache_key": key, **asdict(total)} for key, total in server.service.by_key.of(tenant)]
    return JSON({"object": "list", "data": totals})
