"""ApiError: what a client did wrong or the server could not do, before a dialect gives it its shape."""

from __future__ import annotations

import enum

from starlette.exceptions import HTTPException

from octavo.errors import ContextLengthError, EngineDeadError, InvalidRequestError

_LONGEST = 4000


class ErrorKind(enum.Enum):
    """Kinds of errors, each with its HTTP status. Dialects name them in their own words."""

    INVALID_REQUEST = 400
    AUTHENTICATION = 401
    PERMISSION = 403
    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405
    SLOW_CLIENT = 408
    TOO_LARGE = 413
    RATE_LIMIT = 429
    INTERNAL = 500
    UNAVAILABLE = 503
    TIMEOUT = 504


class ApiError(HTTPException):
    """An error that is answered in the dialect of the endpoint. What clients wrote is cut off where it is endless.

    Attributes:
        kind: what went wrong.
        message: what was given, what is allowed, what to do.
        param: the field of the request it lies in, as the client wrote it: ``messages[2].content``.
        code: a machine-readable name, such as ``context_length_exceeded``.
        retry_after: seconds after which to try again.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(kind.value, message)
        self.kind = kind
        self.message = _cut(message)
        self.param = None if param is None else _cut(param)
        self.code = code
        self.retry_after = retry_after

    @property
    def name(self) -> str:
        """What logs and spans call it."""
        return self.code or self.kind.name.lower()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def invalid(message: str, param: str | None, *, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(ErrorKind.INVALID_REQUEST, message, param=param, code=code)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told about ``error``. Only what Octavo raises on purpose is told in its own words."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return invalid(str(error), error.param, code="context_length_exceeded")
    if isinstance(error, InvalidRequestError):
        return invalid(str(error), error.param)
    if isinstance(error, EngineDeadError):
        return ApiError(ErrorKind.UNAVAILABLE, "the engine has failed and serves nothing more", code="engine_failed")
    if isinstance(error, HTTPException):
        kinds = {kind.value: kind for kind in ErrorKind}
        fallback = ErrorKind.INVALID_REQUEST if error.status_code < 500 else ErrorKind.INTERNAL
        return ApiError(kinds.get(error.status_code, fallback), str(error.detail))
    return ApiError(ErrorKind.INTERNAL, "the server failed on this request; its log has the reason")
