"""Service: the one way from a request to an answer, for every dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from octavo.async_engine import AsyncEngine
from octavo.engine.intake import Prompt, as_prompt
from octavo.engine.sampling_params import SamplingParams
from octavo.server.answers import Answer
from octavo.server.calls import Call, Caller
from octavo.server.config import ServerConfig
from octavo.server.errors import as_api_error
from octavo.server.limits import Admission
from octavo.server.requests import ChatRequest
from octavo.server.usage import Entry, Ledger
from octavo.text.chat import RenderedChat
from octavo.text.reply import ReplyParser


class Service:
    """Renders, constrains, admits and starts. One for each engine; lives on one event loop."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.ledger = Ledger()
        self._timeout = config.timeout
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
        try:
            prompt, sampling, parsers = await asyncio.to_thread(self._prepare, request)
        except Exception as error:
            raise as_api_error(error) from error
        return await self._start(call, prompt, sampling, parsers)

    async def complete(self, call: Call, prompt: Prompt, sampling: SamplingParams) -> Answer:
        """Start completing a prompt: a text or token ids. Raises as :meth:`chat`."""
        parsers = [ReplyParser(tool_format=None, reasoning=False) for _ in range(sampling.n)]
        return await self._start(call, prompt, sampling, parsers)

    async def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens the prompt of ``request`` has.

        Raises:
            ApiError: it cannot be rendered.
        """
        try:
            return len((await asyncio.to_thread(self._render, request)).prompt_token_ids)
        except Exception as error:
            raise as_api_error(error) from error

    def _prepare(self, request: ChatRequest) -> tuple[Prompt, SamplingParams, list[ReplyParser]]:
        """On a worker thread: rendering and tokenising a long conversation takes milliseconds."""
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

    def _render(self, request: ChatRequest) -> RenderedChat:
        return self.engine.assembly.render(
            request.messages,
            tools=request.tools or None,
            continue_final_message=request.continues_final_message,
            chat_template_kwargs=request.template_kwargs or None,
        )

    async def _start(self, call: Call, prompt: Prompt, sampling: SamplingParams, parsers: list[ReplyParser]) -> Answer:
        caller = call.caller or Caller()
        release = self.admission.admit(caller, sampling.n)
        entry = Entry(call.request_id, call.endpoint, caller.tenant)
        call.entries.append(entry)
        try:
            outputs = self.engine.generate(prompt, sampling, cache_salt=caller.cache_salt, timeout=self._timeout)
            first = await anext(outputs)
            return Answer(outputs, first, parsers, entry, self.ledger, release)
        except Exception as error:
            self._give_up(entry, "error", release)
            raise as_api_error(error) from error
        except BaseException:  # cancelled: the client is gone
            self._give_up(entry, "abort", release)
            await outputs.aclose()
            raise

    def _give_up(self, entry: Entry, outcome: str, release: Callable[[], None]) -> None:
        entry.outcomes.append(outcome)
        release()
        self.ledger.close(entry)
