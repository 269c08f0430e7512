"""Answer: one admitted request and its increments; Reply: the whole of one of its answers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from octavo.engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.prompt_cache.accounting import CacheUse
from octavo.server.prompt_cache.history import Record
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
    """One admitted request. Await :meth:`begin`, iterate it once or :meth:`collect` it, and :meth:`close` it in every
    case: closing aborts what is unfinished, frees its blocks and its place, and closes its entry in the ledger.

    Args:
        outputs: the engine's, not begun.
        parsers: one for each of ``n`` answers.
        use: of the cache; settled with the first output.
        release: called once, when it is closed.

    Attributes:
        first: its first output, once it has begun.
    """

    first: RequestOutput

    def __init__(
        self,
        outputs: AsyncGenerator[RequestOutput, None],
        parsers: list[ReplyParser],
        use: CacheUse,
        entry: Entry,
        ledger: Ledger,
        release: Callable[[], None],
    ) -> None:
        self._outputs = outputs
        self._parsers = parsers
        self._use = use
        self._called = [False] * len(parsers)
        self._ended = [False] * len(parsers)
        self._delivered: list[float | None] = [None] * len(parsers)
        self._outcome = "abort"  # of choices that have not ended when this is closed
        self._entry = entry
        self._ledger = ledger
        self._release = release
        self._closed = False

    async def begin(self) -> None:
        """Wait for its first output: what can be refused before anything is sent is refused here. Closes it then.

        Raises:
            ApiError: the request is refused, the engine failed, or the deadline passed while it waited.
        """
        try:
            self.first = first = await anext(self._outputs)
            self._ledger.begin(self._entry, first, self._use.settle(first.num_cached_tokens))
            for completion in first.outputs:
                self._check(completion)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, ApiError):
                self._outcome = "error"
            await self.close()
            if isinstance(error, Exception):
                raise as_api_error(error) from error
            raise  # cancelled: the client is gone

    @property
    def usage(self) -> Usage:
        """What it used so far. The prompt's figures are final from the start."""
        return self._entry.usage

    @property
    def record(self) -> Record:
        """What the history keeps of it."""
        return self._use.record

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
            now = time.monotonic()
            news = [self._increment(completion, now) for completion in output.outputs]
            if news:
                yield news
            if output.finished:
                return
            try:
                output = await anext(self._outputs)
            except Exception as error:
                self._outcome = "error"
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
            self._entry.outcomes += [self._outcome] * self._ended.count(False)
            self._release()
            self._ledger.close(self._entry)

    def _increment(self, completion: CompletionOutput, now: float) -> Increment:
        choice = completion.index
        parser = self._parsers[choice]
        thinks = parser.in_reasoning
        parts = parser.feed(completion.text)
        self.record.outputs[choice].extend(completion.token_ids)
        self._count(completion, thinks or parser.in_reasoning, now)
        increment = Increment(choice, parts, completion.token_ids, completion.logprobs)
        if completion.finish_reason is not None:
            self._check(completion)
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

    def _count(self, completion: CompletionOutput, thinks: bool, now: float) -> None:
        num_tokens = len(completion.token_ids)
        self._ledger.count_output(self._entry, num_tokens, num_tokens if thinks else 0)
        before = self._delivered[completion.index]
        if num_tokens and before is not None:
            self._ledger.count_gap(now - before, num_tokens)
        self._delivered[completion.index] = now

    def _check(self, completion: CompletionOutput) -> None:
        """Raise if it has ended in a way that is no answer; what else has not ended then, ends in the same way."""
        reason = completion.finish_reason
        if reason in _FAILURES:
            self._outcome = reason
            raise ApiError(*_FAILURES[reason])

    def _finish(self, completion: CompletionOutput) -> Finish:
        if completion.finish_reason == "length":
            return "length"
        if self._called[completion.index]:
            return "tool_calls"
        return "stop_sequence" if isinstance(completion.stop_reason, str) else "stop"


_FAILURES: dict[str, tuple[ErrorKind, str]] = {
    "timeout": (ErrorKind.TIMEOUT, "the answer took longer than this server allows"),
    "abort": (ErrorKind.UNAVAILABLE, "the server is shutting down and has ended this answer"),
    "error": (
        ErrorKind.INVALID_REQUEST,
        "no token may be drawn: what the request allows (logit_bias, formats) leaves none",
    ),
}
"""What is told of finish reasons of the engine that are no answer."""


def _has_call(parts: list[ReplyPart]) -> bool:
    return any(isinstance(part, ToolCallStart) for part in parts)
