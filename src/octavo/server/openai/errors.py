"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

from octavo.server.errors import ApiError, ErrorKind
from octavo.server.streaming import data_frame

_TYPES = {
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.INTERNAL: "server_error",
    ErrorKind.UNAVAILABLE: "server_error",
    ErrorKind.TIMEOUT: "server_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    kind = _TYPES.get(error.kind, "invalid_request_error")
    message = error.message
    if error.code == "context_length_exceeded":  # begins as the API's own does: there are clients that look for it
        message = f"This model's maximum context length is exceeded: {message}"
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


def error_frame(error: ApiError) -> bytes:
    """What a stream that has begun says before it ends."""
    return data_frame(error_body(error))
