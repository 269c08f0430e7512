"""Which dialect an error is answered in: that of the endpoint."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from octavo.server.anthropic.errors import error_body as anthropic_body
from octavo.server.anthropic.errors import status as anthropic_status
from octavo.server.calls import call_of
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.openai.errors import error_body as openai_body
from octavo.server.streaming import JSON


def is_anthropic(connection: HTTPConnection) -> bool:
    """Whether an Anthropic client asks: by the endpoint, or by the header that all of its requests have."""
    return is_anthropic_path(connection.scope["path"]) or "anthropic-version" in connection.headers


def is_anthropic_path(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def error_response(connection: HTTPConnection, error: ApiError) -> JSON:
    """The answer to a request that was refused or failed; its call is told."""
    call_of(connection).error = error.name
    body: dict[str, Any]
    status = error.kind.value
    if is_anthropic(connection):
        body, status = anthropic_body(error, call_of(connection).request_id), anthropic_status(error)
    else:
        body = openai_body(error)
    headers = dict(error.headers or {})
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.kind is ErrorKind.AUTHENTICATION:
        headers["www-authenticate"] = "Bearer"
    return JSON(body, status, headers)
