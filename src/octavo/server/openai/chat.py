"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.context import CurrentCall, Server
from octavo.server.openai.chat_reply import ChatReply
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.errors import error_frame
from octavo.server.openai.head import head
from octavo.server.streaming import JSON, EventStream, until_disconnect

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(http: Request, server: Server, call: CurrentCall, body: ChatCompletionRequest) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    server.check_model(body.model)
    with body.wording.applied():
        request = await asyncio.to_thread(body.chat_request)  # a long conversation takes milliseconds to be read
        answer = await until_disconnect(http, server.service.answer(call, body.model, request))
    reply = ChatReply(head(server, call, "chatcmpl", "chat.completion", body.model), body, server.engine.tokenizer)
    if body.stream:
        return EventStream([answer], reply.frames(answer), error_frame)
    replies = await until_disconnect(http, answer.collect())
    return JSON(reply.whole(replies, answer.usage))
