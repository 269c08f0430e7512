"""/v1/models: which models are served. OpenAI's and Anthropic's clients ask at the same address."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from octavo.server.context import Context, Server
from octavo.server.dialects import is_anthropic
from octavo.server.errors import invalid
from octavo.server.streaming import JSON

router = APIRouter()


class ModelsQuery(BaseModel):
    """A page of Anthropic's list. OpenAI's has no pages, so its clients send none of these."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


@router.get("/v1/models")
async def list_models(http: Request, server: Server, query: Annotated[ModelsQuery, Query()]) -> Response:
    """All names that a request may ask for; the first is reported where none is asked for."""
    names = list(server.model_names)
    if not is_anthropic(http):
        return JSON({"object": "list", "data": [_openai(server, name) for name in names]})
    page, has_more = _page(names, query)
    return JSON(
        {
            "data": [_anthropic(server, name) for name in page],
            "has_more": has_more,
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        }
    )


@router.get("/v1/models/{model:path}")
async def retrieve_model(http: Request, server: Server, model: str) -> Response:
    """One of them."""
    server.check_model(model)
    return JSON(_anthropic(server, model) if is_anthropic(http) else _openai(server, model))


def _openai(server: Context, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "octavo",
        "max_model_len": server.engine.summary.max_model_len,
    }


def _anthropic(server: Context, name: str) -> dict[str, Any]:
    max_model_len = server.engine.summary.max_model_len
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(server.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
    }


def _page(names: list[str], query: ModelsQuery) -> tuple[list[str], bool]:
    """The names after ``after_id``, or the last before ``before_id``, and whether there are more in that direction."""
    if query.after_id is not None and query.before_id is not None:
        raise invalid("before_id and after_id go in opposite directions; send one of them", "before_id")
    if query.before_id is not None:
        before = names[: _index(names, query.before_id, "before_id")]
        return before[-query.limit :], len(before) > query.limit
    after = names if query.after_id is None else names[_index(names, query.after_id, "after_id") + 1 :]
    return after[: query.limit], len(after) > query.limit


def _index(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise invalid(f"{param}: there is no model {name!r}", param)
    return names.index(name)
