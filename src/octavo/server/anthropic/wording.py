"""Errors of the engine in the words of this API, so that a message speaks of the field that the client sent."""

from __future__ import annotations

import re

from octavo.errors import ContextLengthError
from octavo.server.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.server.errors import ApiError

_NAMES = (
    (re.compile(r"\btools\[(\d+)\]\.function\.parameters\b"), r"tools[\1].input_schema"),
    (re.compile(r"\btools\[(\d+)\]\.function\b"), r"tools[\1]"),
    (re.compile(r"\bstop\b(?=$| must| cannot)"), "stop_sequences"),
)
_FORMAT = re.compile(r"\bstructured_outputs(\.\w+)*")


def in_our_words(error: ApiError, body: CountTokensRequest) -> ApiError:
    """``error`` with the fields' names that ``body`` has."""
    param = _renamed(error.param, body)
    message = _renamed(error.message, body) or ""
    cause = error.__cause__
    if isinstance(cause, ContextLengthError):
        message, param = _too_long(cause, body, message), "messages" if param == "prompt" else param
    elif param == "prompt":
        param = "messages"
    return ApiError(error.kind, message, param=param, code=error.code, retry_after=error.retry_after)


def _renamed(text: str | None, body: CountTokensRequest) -> str | None:
    if text is None:
        return None
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return _FORMAT.sub("tools" if body.tools or body.cache else "output_config.format", text)


def _too_long(cause: ContextLengthError, body: CountTokensRequest, message: str) -> str:
    """Begins as the API's own message does: clients look for it, and some read the sizes out of it."""
    if cause.param == "max_tokens" and isinstance(body, MessagesRequest):
        sizes = f"{cause.requested - body.max_tokens} + {body.max_tokens} > {cause.limit}"
        advice = "decrease input length or `max_tokens` and try again"
        return f"input length and `max_tokens` exceed context limit: {sizes}, {advice}; {message}"
    return f"prompt is too long: {cause.requested} tokens > {cause.limit} maximum; {message}"
