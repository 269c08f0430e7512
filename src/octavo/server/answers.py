"""Answer: one admitted request and its increments; Reply: the whole of one of its answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from octavo.engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.usage import Entry, Ledger, Usage
from octavo.text.reply import ReplyParser
from octavo.text.reply_parts import Reasoning, ReplyPart, Text, ToolArguments, ToolCallStart

Finish = Literal["stop", "stop_sequence", "tool_calls", "length"]
"""How an answer ended: by itself, at a stop string, with tool calls, or at its limit."""


@dataclass(slots=True)
class Increment:
    """What is new of one answer.

    Attributes:
        choice: which of ``n`` answers.
        parts: text, reasoning and tool calls, in order; see :mod:`octavo.text.reply_parts`.
        token_ids: the new tokens. What they say may be in a later increment's parts.
        logprobs: of these tokens, if asked for.
        finish: set on the last one.
        stop_string: the stop string that ended it, if one did.
    """

    choice: int
    parts: list[ReplyPart]
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: Finish | None = None
    stop_string: str | None = None


@dataclass(slots=True)
class ToolCall:
    """A whole call; ``arguments`` is the JSON text as the model wrote it."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """A whole answer."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish: Finish = "stop"
    stop_string: str | None = None

    def add(self, increment: Increment) -> None:
        for part in increment.parts:
            if isinstance(part, Text):
                self.text += part.text
            elif isinstance(part, Reasoning):
                self.reasoning += part.text
            elif isinstance(part, ToolCallStart):
                self.tool_calls.append(ToolCall(part.name))
            elif isinstance(part, ToolArguments):
                self.tool_calls[part.index].arguments += part.text
        self.token_ids += increment.token_ids
        if increment.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *increment.logprobs]
        if increment.finish is not None:
            self.finish, self.stop_string = increment.finish, increment.stop_string


class Answer:
    """One admitted request. Its first output is there already: what can be refused before that, was.

    Iterate it once, or :meth:`collect`, and :meth:`close` it in every case: closing aborts what is unfinished, frees its
    blocks, and closes its entry in the ledger.
    """

    def __init__(
        self,
        outputs: AsyncGenerator[RequestOutput, None],
        first: RequestOutput,
        parsers: list[ReplyParser],
        entry: Entry,
        ledger: Ledger,
        release: Callable[[], None],
    ) -> None:
        self.first = first
        self._outputs = outputs
        self._parsers = parsers
        self._called = [False] * len(parsers)
        self._ended = [False] * len(parsers)
        self._entry = entry
        self._ledger = ledger
        self._release = release
        self._closed = False
        entry.times = first.metrics
        ledger.count_prompt(entry, len(first.prompt_token_ids), first.num_cached_tokens)

    @property
    def usage(self) -> Usage:
        """What it used so far. The prompt's figures are final from the start."""
        return self._entry.usage

    @property
    def num_choices(self) -> int:
        return len(self._parsers)

    async def increments(self) -> AsyncIterator[list[Increment]]:
        """What is new, whenever something is: at most one increment for each choice.

        Raises:
            ApiError: the answer cannot go on: its deadline passed, the engine failed, no token may be drawn.
        """
        output = self.first
        while True:
            news = [self._increment(completion) for completion in output.outputs]
            if news:
                yield news
            if output.finished:
                return
            try:
                output = await anext(self._outputs)
            except Exception as error:
                self._entry.outcomes.append("error")
                raise as_api_error(error) from error

    async def collect(self) -> list[Reply]:
        """All of its answers, whole, in order; closes it.

        Raises:
            ApiError: as :meth:`increments`.
        """
        replies = [Reply(index) for index in range(self.num_choices)]
        try:
            async for news in self.increments():
                for increment in news:
                    replies[increment.choice].add(increment)
        finally:
            await self.close()
        return replies

    async def close(self) -> None:
        """End it, whatever state it is in. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._outputs.aclose()
        finally:
            unfinished = sum(not ended for ended in self._ended)
            self._entry.outcomes += ["abort"] * (unfinished if not self._entry.outcomes else 0)
            self._release()
            self._ledger.close(self._entry)

    def _increment(self, completion: CompletionOutput) -> Increment:
        choice = completion.index
        parser = self._parsers[choice]
        parts = parser.feed(completion.text)
        self._ledger.count_output(self._entry, len(completion.token_ids), 0)
        increment = Increment(choice, parts, completion.token_ids, completion.logprobs)
        if completion.finish_reason is not None:
            self._ended[choice] = True
            self._entry.outcomes.append(completion.finish_reason)
            increment.parts = [*parts, *parser.finish()]
            self._called[choice] |= _has_call(increment.parts)
            increment.finish = self._finish(completion)
            if isinstance(completion.stop_reason, str):
                increment.stop_string = completion.stop_reason
        elif not self._called[choice]:
            self._called[choice] = _has_call(parts)
        return increment

    def _finish(self, completion: CompletionOutput) -> Finish:
        reason = completion.finish_reason
        if reason == "timeout":
            raise ApiError(ErrorKind.TIMEOUT, "the answer took longer than this server allows")
        if reason == "abort":
            raise ApiError(ErrorKind.UNAVAILABLE, "the request was aborted by the server")
        if reason == "error":
            raise ApiError(
                ErrorKind.INVALID_REQUEST,
                "no token may be drawn: what the request allows (logit_bias, formats) leaves none",
            )
        if reason == "length":
            return "length"
        if self._called[completion.index]:
            return "tool_calls"
        return "stop_sequence" if isinstance(completion.stop_reason, str) else "stop"


def _has_call(parts: list[ReplyPart]) -> bool:
    return any(isinstance(part, ToolCallStart) for part in parts)
