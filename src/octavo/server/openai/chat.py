"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.context import CurrentCall, Server
from octavo.server.openai.chat_reply import chat_completion, chat_frames
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.errors import error_frame
from octavo.server.streaming import JSON, EventStream, until_disconnect

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(http: Request, server: Server, call: CurrentCall, body: ChatCompletionRequest) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    server.check_model(body.model)
    request = body.chat_request()
    answer = await until_disconnect(http, server.service.chat(call, request))
    if body.stream:
        return EventStream([answer], chat_frames(answer, body, call.request_id), error_frame)
    replies = await until_disconnect(http, answer.collect())
    return JSON(chat_completion(replies, answer.usage, body, call.request_id))
