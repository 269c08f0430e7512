"""Responses as the client gets them: whole, or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from octavo.server.answers import Answer, Finish, Increment
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.openai.responses_output import EventFrames, NoEvents, ResponseOutput
from octavo.server.openai.responses_schema import ResponseBody
from octavo.text.tokenizer import Tokenizer

_ERROR_CODES = {ErrorKind.INVALID_REQUEST: "invalid_prompt", ErrorKind.RATE_LIMIT: "rate_limit_exceeded"}


class ResponseReply:
    """One response on its way to the client.

    Args:
        keep: given the response when it is complete, before the client is told so.
        diagnosis: of its use of the cache, if that was asked for.
    """

    def __init__(
        self,
        response_id: str,
        body: ResponseBody,
        answer: Answer,
        tokenizer: Tokenizer,
        keep: Callable[[dict[str, Any]], None],
        diagnosis: dict[str, Any] | None = None,
    ) -> None:
        self._answer = answer
        self._keep = keep
        self._settings = {"id": response_id, "object": "response", "created_at": int(time.time()), **_settings(body)}
        if diagnosis is not None:
            self._settings["prompt_cache_diagnostics"] = diagnosis
        self._says = not body.prewarms
        self._frames = EventFrames()
        events = self._frames if body.stream else NoEvents()
        self._output = ResponseOutput(events, tokenizer, (body.top_logprobs or 0) if body.wants_logprobs else None)
        self._finish: Finish = "stop"

    async def collect(self) -> dict[str, Any]:
        """The whole response. Closes the answer.

        Raises:
            ApiError: it cannot go on.
        """
        try:
            async for news in self._answer.increments():
                self._add(news)
        finally:
            await self._answer.close()
        return self._complete()

    async def frames(self) -> AsyncIterator[bytes]:
        """The same as events. Raises as :meth:`collect`; :meth:`failed` then ends the stream."""
        begun = self._response("in_progress", output=[])
        self._frames.event("response.created", response=begun)
        self._frames.event("response.in_progress", response=begun)
        yield self._frames.take()
        async for news in self._answer.increments():
            self._add(news)
            frames = self._frames.take()
            if frames:
                yield frames
        response = self._complete()
        self._frames.event(f"response.{response['status']}", response=response)
        yield self._frames.take()

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that broke off."""
        self._output.break_off()
        self._frames.event("error", code=error.code, message=error.message, param=error.param)
        fault = {"code": _ERROR_CODES.get(error.kind, "server_error"), "message": error.message}
        response = self._response("failed", output=self._output.items, error=fault)
        self._frames.event("response.failed", response=response)
        return self._frames.take()

    def _add(self, news: list[Increment]) -> None:
        if not self._says:
            return
        for increment in news:
            self._output.add(increment)
            if increment.finish is not None:
                self._finish = increment.finish

    def _complete(self) -> dict[str, Any]:
        cut = self._finish == "length"
        response = self._response(
            "incomplete" if cut else "completed",
            output=self._output.items,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=self._answer.usage.openai_responses(),
            completed_at=None if cut else int(time.time()),
        )
        self._keep(response)
        return response

    def _response(
        self,
        status: str,
        *,
        output: list[dict[str, Any]],
        error: dict[str, Any] | None = None,
        incomplete_details: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
        completed_at: int | None = None,
    ) -> dict[str, Any]:
        return {
            **self._settings,
            "status": status,
            "error": error,
            "incomplete_details": incomplete_details,
            "output": output,
            "usage": usage,
            "completed_at": completed_at,
        }


def _settings(body: ResponseBody) -> dict[str, Any]:
    """What was asked for, with the defaults that were taken."""
    text = body.text
    chosen = None if text is None or text.format is None else text.format.model_dump(by_alias=True)
    choice, retention = body.tool_choice or "auto", body.prompt_cache_retention
    return {
        "model": body.model,
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "tools": [tool.model_dump() for tool in body.tools or []],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "max_tool_calls": body.max_tool_calls,
        "max_output_tokens": body.max_output_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": chosen or {"type": "text"}, "verbosity": None if text is None else text.verbosity},
        "reasoning": {
            "effort": None if body.reasoning is None else body.reasoning.effort,
            "summary": None if body.reasoning is None else body.reasoning.summary,
        },
        "truncation": "disabled",
        "store": body.store is not False,
        "background": False,
        "metadata": body.metadata or {},
        "service_tier": "default",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": "in_memory" if retention == "in-memory" else retention,
        "prompt_cache_options": _cache_options(body),
    }


def _cache_options(body: ResponseBody) -> dict[str, Any]:
    options: dict[str, Any] = {"mode": body.cache_mode, "ttl": body.cache_ttl}
    if body.compared_with is not None:
        options["comparison_response_id"] = body.compared_with
    return options
