"""create_app: the server as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from octavo.async_engine import AsyncEngine
from octavo.errors import EngineDeadError, InvalidRequestError, shown
from octavo.server import admin, cache_explain, cache_usage, disk_tier, health, models, named_caches, openapi
from octavo.server.addresses import nothing_at
from octavo.server.anthropic import messages
from octavo.server.auth import Access
from octavo.server.calls import Call, call_of
from octavo.server.config import ServerConfig
from octavo.server.context import Context
from octavo.server.dialects import error_response
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.keys import KeyRing
from octavo.server.logs import log_call, log_failure
from octavo.server.metrics import Metrics, metrics_router
from octavo.server.middleware import CLIENT_GONE, Envelope
from octavo.server.openai import chat, completions, responses
from octavo.server.service import Service
from octavo.server.streaming import ClientGoneError
from octavo.server.tracing import Tracing
from octavo.server.validation import unreadable_body, validation_error

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # not in every version that will do

_WATCH_SECONDS = 1.0
_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own would tell of refused fields with what was in them: parts of prompts. Ours is in tracing.py."""
_LOG = logging.getLogger("octavo.server")


def create_app(
    engine: AsyncEngine,
    config: ServerConfig | None = None,
    *,
    keys: KeyRing | None = None,
    tracing: Tracing | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """An application that serves ``engine``, which stays its maker's to shut down.

    Args:
        keys: who is let in; ``None``: everybody.
        tracing: told of every request that has ended.
        clock: seconds by which what is cached grows old; it never goes back.
    """
    settings = ServerConfig() if config is None else config
    service = Service(engine, settings, clock=clock)
    context = Context(engine, settings, service, keys)
    model = context.model_names[0]
    metrics = Metrics(engine, service.ledger, model, aliases=settings.vllm_metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await metrics.refresh()
        watch = asyncio.create_task(_watch(engine))
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    def note(call: Call, scope: Scope) -> None:
        metrics.count_response(call.status or CLIENT_GONE)
        log_call(call, model)
        if tracing is not None:
            tracing.record(call, scope)

    app = FastAPI(
        title="Octavo",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        telemetry=_NO_TELEMETRY,
    )
    app.state.octavo = context
    for part in (
        chat,
        completions,
        messages,
        responses,
        named_caches,
        cache_explain,
        cache_usage,
        models,
        health,
        admin,
        disk_tier,
    ):
        app.include_router(part.router)
    for_admins = keys is not None and not settings.public_metrics
    app.include_router(metrics_router(metrics, for_admins=for_admins))
    openapi.describe(app)
    app.add_exception_handler(RequestValidationError, _malformed)
    for failure in (HTTPException, InvalidRequestError, EngineDeadError):
        app.add_exception_handler(failure, _failed)
    app.add_exception_handler(ClientGoneError, _gone)
    app.add_middleware(
        Envelope,
        access=Access(settings, keys),
        max_body=settings.max_body_bytes,
        client_timeout=settings.client_timeout,
        note=note,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
    return app


async def _watch(engine: AsyncEngine) -> None:
    """Say so once when the engine has failed, be there requests or not."""
    while engine.is_healthy:
        await asyncio.sleep(_WATCH_SECONDS)
    _LOG.error("the engine has failed and serves nothing more", exc_info=engine.failure)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(request, validation_error(error))


async def _failed(request: Request, error: Exception) -> Response:
    known = as_api_error(error)
    if known.kind is ErrorKind.INTERNAL:
        log_failure(call_of(request), error)
    elif isinstance(error, HTTPException) and not isinstance(error, ApiError):
        known = _of_the_router(request, known, error.__cause__)
        known.headers = error.headers
    return error_response(request, known)


def _of_the_router(request: Request, error: ApiError, cause: BaseException | None) -> ApiError:
    path = shown(request.url.path)
    if error.kind is ErrorKind.NOT_FOUND:
        known = [route.path for route in request.app.routes if isinstance(route, Route)]
        return ApiError(error.kind, nothing_at(request.url.path, known))
    if error.kind is ErrorKind.METHOD_NOT_ALLOWED:
        return ApiError(error.kind, f"{path} does not take {request.method}")
    if error.kind is ErrorKind.INVALID_REQUEST:
        return unreadable_body(cause)
    return error


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
