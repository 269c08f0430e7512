"""What administrators may ask and do: /admin."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from octavo.errors import EngineDeadError
from octavo.kv.histogram import Histogram
from octavo.server.auth import require_admin
from octavo.server.context import Server
from octavo.server.errors import as_api_error
from octavo.server.streaming import JSON

router = APIRouter(prefix="/admin", dependencies=[Depends(require_admin)])


@router.post("/cache/flush")
async def flush_cache(server: Server) -> Response:
    """Forget every cached block that no request holds."""
    server.service.entries.clear()
    try:
        flushed = await server.engine.reset_prefix_cache()
    except EngineDeadError as error:
        raise as_api_error(error) from error
    server.service.history.flushed(server.service.clock())
    return JSON({"flushed_blocks": flushed})


@router.get("/stats")
async def stats(server: Server) -> Response:
    """What the engine has done since its start, and what it holds right now."""
    report = await server.engine.report()
    gauges = {**dataclasses.asdict(report.gauges), "kv_cache_usage": report.gauges.kv_cache_usage}
    found = {"stats": _plain(report.stats), "gauges": gauges}
    if (tier := report.tier) is not None:
        stats = {**dataclasses.asdict(tier.stats), "num_loaded_tokens": tier.num_loaded_tokens}
        found["disk"] = {"stats": stats, "gauges": dataclasses.asdict(tier.gauges)}
    return JSON(found)


def _plain(stats: Any) -> dict[str, Any]:
    values = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
    return {name: _buckets(value) if isinstance(value, Histogram) else value for name, value in values.items()}


def _buckets(histogram: Histogram) -> dict[str, Any]:
    """The bucket without a bound is ``count``."""
    bounded = histogram.cumulative()[:-1]
    return {"count": histogram.count, "sum": histogram.sum, "not_above": {str(bound): n for bound, n in bounded}}
