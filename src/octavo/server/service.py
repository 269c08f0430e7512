"""Service: the one way from a request to an answer, for every dialect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias, TypeVar

from octavo.async_engine import AsyncEngine
from octavo.engine.intake import Prompt, as_prompt
from octavo.engine.sampling_params import SamplingParams
from octavo.server.answers import Answer
from octavo.server.calls import Call, Caller
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.limits import Admission
from octavo.server.requests import ChatRequest
from octavo.server.usage import Ledger
from octavo.text.chat import RenderedChat
from octavo.text.reply import ReplyParser

Prepared: TypeAlias = tuple[Prompt, SamplingParams, list[ReplyParser]]
_T = TypeVar("_T")
_LONG = 256 * 1024
"""Bytes of a request that takes more than a moment, and much memory, to be read: ten million characters take eight
seconds to be tokenised, and a gigabyte."""


class Service:
    """Renders, constrains, admits and starts. One for each engine; lives on one event loop."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.ledger = Ledger()
        self._timeout = config.timeout
        self._long = ThreadPoolExecutor(1, "octavo-long")
        self._under_way: set[str] = set()  # the engine's ids
        self._ending = False
        self.admission = Admission(
            max_running=engine.assembly.engine.config.max_num_running,
            max_queue=config.max_queue,
            max_concurrency=config.max_concurrency,
        )

    async def chat(self, call: Call, request: ChatRequest) -> Answer:
        """Start answering a conversation.

        Raises:
            ApiError: it is refused, or the engine failed before its first token.
        """
        return await self._start(call, request.sampling.n, lambda: self._prepare(request))

    async def complete(self, call: Call, prompt: Prompt, sampling: SamplingParams) -> Answer:
        """Start completing a prompt: a text or token ids. Raises as :meth:`chat`."""
        parsers = [ReplyParser(tool_format=None, reasoning=False) for _ in range(sampling.n)]
        return await self._start(call, sampling.n, lambda: (self._tokenised(prompt), sampling, parsers))

    async def end_all(self) -> None:
        """End every answer that is under way, each with an error, and begin none any more."""
        self._ending = True
        for request_id in list(self._under_way):
            await self.engine.abort(request_id)

    async def _aside(self, call: Call, work: Callable[[], _T]) -> _T:
        """What ``work`` returns, from a thread. Long requests take turns there: all others wait for none of them, and
        only one takes its memory at a time.
        """
        pool = self._long if call.body_size > _LONG else None
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def count_tokens(self, call: Call, request: ChatRequest) -> int:
        """How many tokens the prompt of ``request`` has.

        Raises:
            ApiError: it cannot be rendered.
        """
        try:
            return len((await self._aside(call, lambda: self._render(request))).prompt_token_ids)
        except Exception as error:
            raise as_api_error(error) from error

    def _prepare(self, request: ChatRequest) -> Prepared:
        """On a worker thread, as :meth:`_tokenised`: a long conversation takes milliseconds."""
        rendered = self._render(request)
        formats = self.engine.assembly.reply_format
        has_tools = bool(request.tools) and request.tool_choice != "none"
        constraint = formats.constraint(
            tools=request.callable_tools,
            tool_choice=request.tool_choice,
            parallel=request.parallel_tool_calls,
            output=request.output,
            in_reasoning=rendered.in_reasoning,
        )
        skip = request.sampling.skip_special_tokens and formats.skip_special_tokens(has_tools)
        sampling = replace(request.sampling, structured_outputs=constraint, skip_special_tokens=skip)
        parsers = [
            formats.parser(tools=has_tools, in_reasoning=rendered.in_reasoning) for _ in range(request.sampling.n)
        ]
        return as_prompt(rendered), sampling, parsers

    def _tokenised(self, prompt: Prompt) -> Prompt:
        if not isinstance(prompt, str):
            return prompt
        return {"prompt": prompt, "prompt_token_ids": self.engine.tokenizer.encode(prompt)}

    def _render(self, request: ChatRequest) -> RenderedChat:
        return self.engine.assembly.render(
            request.messages,
            tools=request.tools or None,
            continue_final_message=request.continues_final_message,
            chat_template_kwargs=request.template_kwargs or None,
        )

    async def _start(self, call: Call, num_answers: int, prepare: Callable[[], Prepared]) -> Answer:
        """Take a place first: whoever gets none costs nothing. From then on the answer, and with it the place, ends
        with its call.
        """
        caller = call.caller or Caller()
        leave = self.admission.admit(caller, num_answers)
        try:
            prompt, sampling, parsers = await self._aside(call, prepare)
            group = await self.engine.accept(
                prompt, sampling, cache_salt=caller.cache_salt, timeout=self._time_left(call)
            )
            if self._ending:
                raise ApiError(ErrorKind.UNAVAILABLE, "the server is shutting down")
        except Exception as error:
            leave()
            raise as_api_error(error) from error
        except BaseException:  # cancelled: the client is gone
            leave()
            raise

        def ended() -> None:
            self._under_way.discard(group.request_id)
            leave()

        self._under_way.add(group.request_id)
        answer = Answer(self.engine.stream(group), parsers, call.enter(), self.ledger, ended)
        call.answers.append(answer)
        await answer.begin()
        return answer

    def _time_left(self, call: Call) -> float | None:
        if self._timeout is None:
            return None
        left = self._timeout - (time.monotonic() - call.started)
        if left <= 0:
            raise ApiError(ErrorKind.TIMEOUT, "the request was not begun within the time that this server allows")
        return left
