"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

from __future__ import annotations

from typing import Any

from octavo.server.errors import ApiError, ErrorKind
from octavo.server.streaming import event_frame

_TYPES = {
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
}
THREAD_UNSUPPORTED = "thread_unsupported_request"
"""What the SDK's tool runner looks for: it tries to have its conversation kept first, and then does without."""


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(error.kind, "invalid_request_error")
    told: dict[str, Any] = {"type": kind, "message": error.message}
    if error.code == THREAD_UNSUPPORTED:
        told["details"] = {"error_code": error.code, "unsupported": ["thread"]}
    return {"type": "error", "error": told, "request_id": request_id}


def status(error: ApiError) -> int:
    """The HTTP status: this API has one of its own for a server that cannot take requests."""
    return 529 if error.kind is ErrorKind.UNAVAILABLE else error.kind.value


def error_frame(error: ApiError, request_id: str) -> bytes:
    """What a stream that has begun says before it ends."""
    return event_frame("error", error_body(error, request_id))
