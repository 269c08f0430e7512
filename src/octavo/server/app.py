"""create_app: the server as an ASGI application."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo.async_engine import AsyncEngine
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.server import models
from octavo.server.anthropic import messages
from octavo.server.calls import Call
from octavo.server.config import ServerConfig
from octavo.server.context import Context
from octavo.server.dialects import error_response
from octavo.server.errors import as_api_error
from octavo.server.middleware import CLIENT_GONE, Envelope
from octavo.server.openai import chat, completions, responses
from octavo.server.service import Service
from octavo.server.streaming import ClientGoneError
from octavo.server.validation import validation_error


def create_app(engine: AsyncEngine, config: ServerConfig | None = None) -> FastAPI:
    """An application that serves ``engine``, which stays its maker's to shut down."""
    settings = ServerConfig() if config is None else config
    app = FastAPI(title="Octavo", docs_url=None, redoc_url=None)
    app.state.octavo = Context(engine, settings, Service(engine, settings))
    app.include_router(chat.router)
    app.include_router(completions.router)
    app.include_router(messages.router)
    app.include_router(responses.router)
    app.include_router(models.router)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _failed)
    for refusal in (InvalidRequestError, EngineDeadError):
        app.add_exception_handler(refusal, _failed)
    app.add_exception_handler(ClientGoneError, _gone)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Envelope, max_body=settings.max_body_bytes, note=_note)
    return app


def _note(call: Call, status: int) -> None:
    pass


def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(request, validation_error(error))


def _failed(request: Request, error: Exception) -> Response:
    return error_response(request, as_api_error(error))


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
