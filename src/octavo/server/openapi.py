"""The OpenAPI document: FastAPI's, with the errors that this server answers in place of FastAPI's own."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from octavo import __version__
from octavo.server.auth import OPEN
from octavo.server.dialects import is_anthropic_path

_DESCRIPTION = "Octavo serves the OpenAI and Anthropic APIs from one engine around its KV cache."
_STATUSES = {
    400: "The request cannot be served as given; the message names the field.",
    401: "The API key is missing or wrong.",
    403: "The API key does not allow this.",
    404: "There is no such model, response, cache or address.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too much is under way; try again after `retry-after` seconds.",
    500: "The server failed on this request.",
    503: "The engine has failed, or the server is overloaded or shutting down.",
    504: "The answer took longer than this server allows.",
}
_WITHOUT_A_BODY = frozenset({408, 413})
_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}


def describe(app: FastAPI) -> None:
    """Have ``app`` give this document at /openapi.json."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=__version__, description=_DESCRIPTION, routes=app.routes)
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("422", None)
            if path not in OPEN:
                operation["responses"].update(_errors(path, method))
                operation["security"] = [{"bearer": []}, {"x-api-key": []}, {}]
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(_SCHEMAS)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return found


def _errors(path: str, method: str) -> dict[str, Any]:
    schema = "AnthropicError" if is_anthropic_path(path) else "OpenAIError"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {
        str(status): {"description": text, "content": content}
        for status, text in _STATUSES.items()
        if method in ("post", "patch") or status not in _WITHOUT_A_BODY
    }


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


_SCHEMAS = {
    "OpenAIError": _object(
        ["error"],
        error=_object(
            ["message", "type", "param", "code"], message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL
        ),
    ),
    "AnthropicError": _object(
        ["type", "error", "request_id"],
        type={"const": "error"},
        error=_object(["type", "message"], type=_TEXT, message=_TEXT),
        request_id=_TEXT,
    ),
}
