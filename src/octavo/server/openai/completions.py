"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.answers import Answer
from octavo.server.calls import Call
from octavo.server.context import Context, CurrentCall, Server
from octavo.server.errors import invalid
from octavo.server.openai.completions_reply import CompletionReply
from octavo.server.openai.completions_schema import CompletionRequest
from octavo.server.openai.errors import error_frame
from octavo.server.openai.head import head
from octavo.server.openai.together import all_collected, all_started
from octavo.server.requests import PlainRequest
from octavo.server.streaming import JSON, EventStream, until_disconnect

router = APIRouter()


@router.post("/v1/completions")
async def completions(http: Request, server: Server, call: CurrentCall, body: CompletionRequest) -> Response:
    """Complete one prompt or several, whole or as server-sent events."""
    server.check_model(body.model)
    with body.wording(0).applied():
        requests = body.plain_requests()
    _check_number(server, body)
    starts = [_start(server, call, body, request, place) for place, request in enumerate(requests)]
    answers = await until_disconnect(http, all_started(starts))
    reply = CompletionReply(head(server, call, "cmpl", "text_completion", body.model), body, server.engine.tokenizer)
    if body.stream:
        return EventStream(answers, reply.frames(answers), error_frame)
    replies = await until_disconnect(http, all_collected(answers))
    return JSON(reply.whole(answers, replies))


async def _start(server: Context, call: Call, body: CompletionRequest, request: PlainRequest, place: int) -> Answer:
    with body.wording(place).applied():
        return await server.service.answer(call, body.model, request)


def _check_number(server: Context, body: CompletionRequest) -> None:
    """More answers than the server ever takes at once are no matter of waiting."""
    wanted, capacity = len(body.prompts) * body.num_drawn, server.service.admission.capacity
    if wanted > capacity:
        raise invalid(f"{wanted:,} answers are asked for; this server takes {capacity} at once", "prompt")
