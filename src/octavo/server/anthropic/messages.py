"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.answers import Answer
from octavo.server.anthropic.diagnostics import compared
from octavo.server.anthropic.errors import error_frame
from octavo.server.anthropic.reply import whole_message
from octavo.server.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.server.anthropic.stream import message_frames
from octavo.server.anthropic.wording import in_our_words
from octavo.server.calls import Call
from octavo.server.context import Context, CurrentCall, Server
from octavo.server.errors import as_api_error
from octavo.server.streaming import JSON, EventStream, until_disconnect

router = APIRouter()


@router.post("/v1/messages")
async def create_message(http: Request, server: Server, call: CurrentCall, body: MessagesRequest) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    server.check_model(body.model)
    answer = await until_disconnect(http, _started(server, call, body))
    diagnostics = await compared(server.service.history, answer.record, body.diagnostics)
    if body.stream:
        return EventStream(
            [answer],
            message_frames(answer, body, call, diagnostics),
            lambda error: error_frame(in_our_words(error, body), call.request_id),
        )
    try:
        return JSON(await until_disconnect(http, whole_message(answer, body, call, diagnostics)))
    finally:
        await answer.close()


@router.post("/v1/messages/count_tokens")
async def count_tokens(http: Request, server: Server, call: CurrentCall, body: CountTokensRequest) -> Response:
    """How many tokens a prompt has: as many as a message's three figures of input together."""
    server.check_model(body.model)
    return JSON({"input_tokens": await until_disconnect(http, _counted(server, call, body))})


async def _started(server: Context, call: Call, body: MessagesRequest) -> Answer:
    try:
        return await server.service.answer(call, body.model, await asyncio.to_thread(body.chat_request))
    except Exception as error:
        raise in_our_words(as_api_error(error), body) from error


async def _counted(server: Context, call: Call, body: CountTokensRequest) -> int:
    try:
        return await server.service.count_tokens(call, await asyncio.to_thread(body.chat_request))
    except Exception as error:
        raise in_our_words(as_api_error(error), body) from error
