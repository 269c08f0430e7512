"""POST /v1/cache/explain: how much of a prompt is reused, and why no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.calls import Call, Caller
from octavo.server.context import Context, CurrentCall, Server
from octavo.server.errors import ApiError, ErrorKind, as_api_error, invalid
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.completions_schema import CompletionRequest
from octavo.server.openai.responses_request import turn_of
from octavo.server.openai.responses_schema import ResponseBody
from octavo.server.prompt_cache.accounting import CacheUse
from octavo.server.prompt_cache.explain import Cause, Explanation, Question, Seen, covering, explain
from octavo.server.prompt_cache.history import Record
from octavo.server.streaming import JSON, until_disconnect
from octavo.server.validation import Body, validation_error
from octavo.text.chat import RenderedChat
from octavo.text.tokenizer import Tokenizer

router = APIRouter()
_B = TypeVar("_B", bound=Body)
_RADIUS = 40
"""Characters of text that are shown on either side of the first difference."""
_WINDOW = 4 * _RADIUS
"""Tokens that are decoded for that: a character takes four at most."""


class ExplainBody(Body):
    """Which prompt: that of an earlier request, or that of one as it would be sent to ``endpoint``."""

    request_id: str | None = None
    endpoint: Literal["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/completions"] | None = None
    request: dict[str, Any] | None = None


@router.post("/v1/cache/explain")
async def explain_cache(http: Request, server: Server, call: CurrentCall, body: ExplainBody) -> Response:
    """Say how much of a prompt is reused, where it first differs from earlier ones, and what keeps the rest from being
    reused. Nothing is computed by the model, and nothing in the cache changes.
    """
    return JSON(await until_disconnect(http, _explained(server, call, body)))


@dataclass(frozen=True, slots=True)
class _Subject:
    """A prompt to be explained.

    Attributes:
        found: what a request for it would find now.
        earlier: what its tenant sent before it, the newest first.
        is_past: it was answered, or is being answered: what it reused is known.
    """

    record: Record
    found: int
    earlier: list[Record]
    is_past: bool


async def _explained(server: Context, call: Call, body: ExplainBody) -> dict[str, Any]:
    subject = await _subject(server, call, body)
    record, service = subject.record, server.service
    entries, flushes, now = list(service.entries.live(record.salt)), list(service.history.flushes), service.clock()

    def work() -> dict[str, Any]:
        """Aside: a thousand long prompts take some milliseconds to be compared."""
        covers = covering(entries, record.prompt)
        at = record.began if subject.is_past else now
        explanation = explain(Question(record, subject.earlier, flushes, None if subject.is_past else covers, at))
        rendered = _rendered(server, record)
        return {
            "prompt_tokens": len(record.prompt),
            "hit_tokens": record.num_cached,
            "hit_tokens_now": subject.found,
            "read_tokens": record.num_read,
            "complete": record.num_cached == len(record.prompt) - 1,
            "first_difference": _first_difference(record, explanation, rendered, server.engine.tokenizer),
            "causes": [_told(cause) for cause in explanation.causes],
            "entries": [
                {"tokens": entry.num_tokens, "ttl": entry.ttl, "seconds_left": round(entry.expires - now, 3)}
                for entry in covers
            ],
            "template": _template(server, record),
        }

    caller = call.caller or Caller()
    told = await asyncio.to_thread(work)
    told["causes"] += [_told(cause) for cause in await _other_formats(server, subject)]
    if caller.is_admin:
        told["causes"] += [_told(cause) for cause in await _others(server, subject)]
    about = {"request_id": None if body.request_id is None else record.request_id}
    return {"object": "cache.explanation", **about, **({"tenant": record.tenant} if caller.is_admin else {}), **told}


async def _subject(server: Context, call: Call, body: ExplainBody) -> _Subject:
    """The prompt, as of then, or as of now."""
    if body.request_id is not None:
        if body.endpoint is not None or body.request is not None:
            raise invalid("send a request_id, or endpoint and request; not both", "request_id")
        record = _past(server, call, body.request_id)
        found, earlier = await _found(server, record), server.service.history.before(record)
        if record.num_cached is None:  # it waits
            read = 0 if record.by_entries else found
            return _Subject(replace(record, num_cached=found, num_read=read), found, earlier, False)
        return _Subject(record, found, earlier, True)
    if body.endpoint is None or body.request is None:
        missing = "endpoint" if body.endpoint is None else "request"
        raise invalid(
            f"{missing} is required, or a request_id alone: of an earlier request",
            missing,
            code="missing_required_parameter",
        )
    use = await _considered(server, call, body.endpoint, body.request)
    record = use.record
    found = await _found(server, record)
    record.num_cached, record.num_read = found, use.would_read(found)
    return _Subject(record, found, server.service.history.before(record), False)


def _past(server: Context, call: Call, request_id: str) -> Record:
    """Another tenant's request cannot be told from one that never was, unless an admin asks."""
    caller = call.caller or Caller()
    record = server.service.history.find(None if caller.is_admin else caller.tenant, request_id)
    if record is None:
        raise ApiError(
            ErrorKind.NOT_FOUND,
            "there is no such request among those that are remembered; --max-history says how many are",
            param="request_id",
            code="request_not_found",
        )
    return record


async def _found(server: Context, record: Record) -> int:
    if not record.reads:
        return 0
    return await server.engine.lookup(record.prompt.tolist(), cache_salt=record.salt)


async def _considered(server: Context, call: Call, endpoint: str, request: dict[str, Any]) -> CacheUse:
    """What the request would be at its endpoint. Errors name its fields behind ``request``."""
    ways: dict[str, Callable[[Context, Call, dict[str, Any]], Awaitable[CacheUse]]] = {
        "/v1/messages": _message,
        "/v1/chat/completions": _chat,
        "/v1/responses": _response,
        "/v1/completions": _completion,
    }
    try:
        return await ways[endpoint](server, call, request)
    except Exception as error:
        known = as_api_error(error)
        if known.kind is not ErrorKind.INTERNAL and known.param is not None:
            known.param = f"request.{known.param}"
        raise known from error


async def _message(server: Context, call: Call, request: dict[str, Any]) -> CacheUse:
    body = _read(MessagesRequest, request)
    server.check_model(body.model)
    return await server.service.consider(call, body.model, await asyncio.to_thread(body.chat_request))


async def _chat(server: Context, call: Call, request: dict[str, Any]) -> CacheUse:
    body = _read(ChatCompletionRequest, request)
    server.check_model(body.model)
    with body.wording.applied():
        return await server.service.consider(call, body.model, await asyncio.to_thread(body.chat_request))


async def _response(server: Context, call: Call, request: dict[str, Any]) -> CacheUse:
    body = _read(ResponseBody, request)
    server.check_model(body.model)
    turn = await turn_of(body, server.responses, (call.caller or Caller()).tenant)
    try:
        return await server.service.consider(call, body.model, turn.request)
    except ApiError as error:
        raise turn.in_clients_words(error) from error


async def _completion(server: Context, call: Call, request: dict[str, Any]) -> CacheUse:
    body = _read(CompletionRequest, request)
    server.check_model(body.model)
    if len(body.prompts) > 1:
        raise invalid("prompt: one is explained at a time", "prompt")
    with body.wording(0).applied():
        [plain] = body.plain_requests()
        return await server.service.consider(call, body.model, plain)


def _read(model: type[_B], request: dict[str, Any]) -> _B:
    try:
        return model.model_validate(request)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise validation_error(RequestValidationError(found, body=request)) from error


def _rendered(server: Context, record: Record) -> RenderedChat | None:
    """The conversation again, if that makes the same tokens: a template may know what day it is."""
    if record.request is None:
        return None
    rendered = server.service.preparation.render(record.request)
    return rendered if rendered.prompt_token_ids == record.prompt.tolist() else None


def _first_difference(
    record: Record, explanation: Explanation, rendered: RenderedChat | None, tokenizer: Tokenizer
) -> dict[str, Any] | None:
    closest = explanation.closest
    if closest is None or not closest.differs:
        return None
    index = closest.num_shared
    if rendered is None:
        before = tokenizer.decode(record.prompt[max(0, index - _WINDOW) : index], skip_special_tokens=False)[-_RADIUS:]
        after = _decoded(record.prompt, index, tokenizer)
    else:
        before, after = rendered.text_around(index, _RADIUS)
    return {
        "token_index": index,
        "segment": _segment(record, rendered, index),
        "before": before,
        "after": after,
        "earlier": _earlier(closest, tokenizer),
    }


def _earlier(closest: Seen, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "request_id": closest.record.request_id,
        "in": "prompt" if closest.output is None else "answer",
        "after": _decoded(closest.tokens, closest.num_shared, tokenizer),
    }


def _decoded(tokens: Any, index: int, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(tokens[index : index + _WINDOW], skip_special_tokens=False)[:_RADIUS]


def _segment(record: Record, rendered: RenderedChat | None, index: int) -> dict[str, Any] | None:
    """Which part of the conversation a token is in. To Anthropic's clients ``system`` is no message, and so it does not
    count as one.
    """
    if rendered is None or record.request is None:
        return None
    segment = rendered.segment_at(index)
    if segment is None:
        return {"kind": "generation_prompt", "index": 0}
    if segment.kind != "message":
        return {"kind": segment.kind, "index": segment.index}
    messages = record.request.messages
    apart = record.request.caching.contract == "anthropic" and messages[0].get("role") == "system"
    role = messages[segment.index].get("role")
    return {"kind": "message", "index": segment.index - apart, "role": role}


def _template(server: Context, record: Record) -> dict[str, Any] | None:
    """Whether a reply is found again by the next turn, as far as the chat template has a say."""
    if record.request is None:
        return None
    stability = server.engine.assembly.prefix_stability(bool(record.request.tools))
    return {"prefix_stable": stability.is_stable, "why_not": stability.why_not}


async def _other_formats(server: Context, subject: _Subject) -> list[Cause]:
    """What the disk tier has of the prompt, computed by another model or kept in another format."""
    link, record = server.engine.assembly.engine.tier, subject.record
    if link is None or not record.reads:
        return []
    found = await asyncio.to_thread(link.in_other_formats, record.prompt.tolist(), record.salt)
    return [
        Cause(
            "other_format",
            subject.found,
            held,
            f"{held} tokens of this prompt are on the disk as {label}, which this server cannot use: it has another "
            "model, KV format, block size or instruction set",
        )
        for label, held in found
        if held > subject.found
    ]


async def _others(server: Context, subject: _Subject) -> list[Cause]:
    """Which other tenants hold more of the prompt. For administrators."""
    found = []
    for tenant, salt in server.service.history.salts().items():
        if salt == subject.record.salt:
            continue
        held = await server.engine.lookup(subject.record.prompt.tolist(), cache_salt=salt)
        if held > subject.found:
            message = f"{held} tokens of this prompt are cached for tenant {tenant}, which shares them with no other"
            found.append(Cause("other_tenant", subject.found, held, message, tenant))
    return found


def _told(cause: Cause) -> dict[str, Any]:
    told: dict[str, Any] = {"type": cause.kind, "tokens": [cause.start, cause.end], "message": cause.message}
    return told if cause.tenant is None else {**told, "tenant": cause.tenant}
