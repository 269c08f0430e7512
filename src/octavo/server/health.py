"""What supervisors ask: /health, /ready, /version. Nobody needs a key for them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from octavo import __version__
from octavo.server.context import Server
from octavo.server.streaming import JSON

router = APIRouter()


@router.get("/health")
async def health(server: Server) -> Response:
    """200 while the engine works; 503 once it has failed: only a restart helps."""
    works = server.engine.is_healthy
    return JSON({"status": "ok" if works else "engine failed"}, 200 if works else 503)


@router.get("/ready")
async def ready(server: Server) -> Response:
    """200 while requests are taken; 503 once the engine has failed or the server was told to end."""
    status = "ending" if server.is_ending else "ready" if server.engine.is_healthy else "engine failed"
    return JSON({"status": status}, 200 if status == "ready" else 503)


@router.get("/version")
async def version(server: Server) -> Response:
    """Octavo's version."""
    return JSON({"version": __version__})
