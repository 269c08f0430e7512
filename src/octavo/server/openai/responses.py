"""/v1/responses: answers that may be stored and gone on with."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from octavo.server.calls import Call, Caller
from octavo.server.context import Context, CurrentCall, Server
from octavo.server.errors import ApiError, invalid
from octavo.server.openai.responses_diagnostics import diagnosed
from octavo.server.openai.responses_reply import ResponseReply
from octavo.server.openai.responses_request import conversation_items, turn_of
from octavo.server.openai.responses_schema import InputTokensBody, ResponseBody
from octavo.server.openai.responses_store import StoredResponse
from octavo.server.prompt_cache.history import Record
from octavo.server.streaming import JSON, EventStream, until_disconnect

router = APIRouter()


class RetrieveQuery(BaseModel):
    """A stored response is given back as it was; there is nothing to choose."""

    model_config = ConfigDict(extra="forbid")

    stream: Literal["false"] | None = None


class ItemsQuery(BaseModel):
    """A page of items. ``order``: ``desc`` begins with the last item."""

    model_config = ConfigDict(extra="forbid")

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


@router.post("/v1/responses")
async def create_response(http: Request, server: Server, call: CurrentCall, body: ResponseBody) -> Response:
    """Answer, whole or as server-sent events; the response is stored unless ``store`` is false."""
    server.check_model(body.model)
    tenant = _tenant(call)
    turn = await turn_of(body, server.responses, tenant)
    compared = _compared(server, tenant, body)  # before this request can push it out
    try:
        answer = await until_disconnect(http, server.service.answer(call, body.model, turn.request))
    except ApiError as error:
        raise turn.in_clients_words(error) from error

    def keep(response: dict[str, Any]) -> None:
        if body.store is not False:
            server.responses.put(tenant, StoredResponse.of(response, turn.items))

    response_id = "resp_" + call.request_id.removeprefix("req_")
    diagnosis = None if compared is None else await asyncio.to_thread(diagnosed, *compared, answer.record)
    reply = ResponseReply(response_id, body, answer, server.engine.tokenizer, keep, diagnosis)
    if body.stream:
        return EventStream([answer], reply.frames(), reply.failed)
    return JSON(await until_disconnect(http, reply.collect()))


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(http: Request, server: Server, call: CurrentCall, body: InputTokensBody) -> Response:
    """How many tokens the same request would have as its prompt."""
    if body.model is not None:
        server.check_model(body.model)
    turn = await turn_of(body, server.responses, _tenant(call))
    try:
        count = await until_disconnect(http, server.service.count_tokens(call, turn.request))
    except ApiError as error:
        raise turn.in_clients_words(error) from error
    return JSON({"object": "response.input_tokens", "input_tokens": count})


@router.get("/v1/responses/{response_id}")
async def retrieve_response(
    server: Server, call: CurrentCall, response_id: str, query: Annotated[RetrieveQuery, Query()]
) -> Response:
    """A stored response, as it was given when it was complete."""
    stored = server.responses.get(_tenant(call), response_id)
    return Response(stored.body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(server: Server, call: CurrentCall, response_id: str) -> Response:
    """Forget a response. Responses that go on with it can then not be gone on with themselves."""
    server.responses.delete(_tenant(call), response_id)
    return JSON({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    server: Server, call: CurrentCall, response_id: str, query: Annotated[ItemsQuery, Query()]
) -> Response:
    """What a response was computed from: the conversation before it, and its own input."""
    tenant = _tenant(call)
    server.responses.get(tenant, response_id)
    chain = server.responses.chain(tenant, response_id)
    items = [*conversation_items(chain[:-1]), *chain[-1].input_items()]
    if query.order == "desc":
        items.reverse()
    begin = 0
    if query.after is not None:
        begin = next((index + 1 for index, item in enumerate(items) if item["id"] == query.after), -1)
        if begin < 0:
            raise invalid(f"after: the input has no item {query.after!r}", "after")
    page = items[begin : begin + query.limit]
    return JSON(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
            "has_more": begin + len(page) < len(items),
        }
    )


def _compared(server: Context, tenant: str, body: ResponseBody) -> tuple[Record | None, bool] | None:
    """What is known of the response that this one is to be compared with, and whether it is stored."""
    name = body.compared_with
    if name is None:
        return None
    return server.service.history.find(tenant, name), server.responses.has(tenant, name)


def _tenant(call: Call) -> str:
    return (call.caller or Caller()).tenant
