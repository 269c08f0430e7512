"""Service: the one way from a request to an answer, for every dialect."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from octavo.async_engine import AsyncEngine
from octavo.config import parse_bytes
from octavo.engine.assemble import Assembly
from octavo.engine.intake import Prompt, as_prompt
from octavo.engine.sampling_params import SamplingParams
from octavo.server.answers import Answer
from octavo.server.calls import Call, Caller
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.limits import Admission
from octavo.server.prompt_cache.accounting import CacheUse
from octavo.server.prompt_cache.by_key import UsageByKey
from octavo.server.prompt_cache.caching import Breakpoint, Caching, End, Kept
from octavo.server.prompt_cache.contents import place_names
from octavo.server.prompt_cache.entries import Entries
from octavo.server.prompt_cache.history import History, Record, bytes_of, shared_prefix
from octavo.server.prompt_cache.named import Content, NamedCache, NamedCaches, beginning_with, check_kind, renumbered
from octavo.server.prompt_cache.volatile import without_volatile_system_lines
from octavo.server.requests import ChatRequest
from octavo.server.usage import Ledger
from octavo.text.chat import RenderedChat
from octavo.text.places import Place
from octavo.text.reply import ReplyParser

_T = TypeVar("_T")
_LONG = 256 * 1024
"""Bytes of a request that takes more than a moment, and much memory, to be read: ten million characters take eight
seconds to be tokenised, and a gigabyte."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for the engine. ``token_ids``: of the prompt; ``names``: of what it consists of."""

    prompt: Prompt
    token_ids: Sequence[int]
    sampling: SamplingParams
    parsers: list[ReplyParser]
    breakpoints: list[Breakpoint]
    names: Collection[bytes] = ()
    request_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request before it is prepared. ``beginning``: what of its prompt is kept anyway."""

    model: str
    caching: Caching
    num_answers: int
    prepare: Callable[[], Prepared]
    request: ChatRequest | None = None
    beginning: NamedCache | Kept | None = None


class Service:
    """Renders, constrains, admits and starts. One for each engine; lives on one event loop.

    Args:
        clock: seconds by which what is cached grows old; it never goes back.
    """

    def __init__(
        self, engine: AsyncEngine, config: ServerConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine = engine
        self.ledger = Ledger()
        self.clock = clock
        self.entries = Entries(clock)
        self.by_key = UsageByKey()
        self.history = History(max_bytes=parse_bytes(config.max_history_bytes), max_records=config.max_history)
        self.caches = NamedCaches(
            clock, max_caches=config.max_caches, max_tokens=_max_cache_tokens(config, engine.assembly)
        )
        self.min_cache_tokens = config.min_cache_tokens
        self._config = config
        self._reads_cache = engine.assembly.engine.config.enable_prefix_caching
        self._timeout = config.timeout
        self._long = ThreadPoolExecutor(1, "octavo-long")
        self._under_way: set[str] = set()  # the engine's ids
        self._ending = False
        self.admission = Admission(
            max_running=engine.assembly.engine.config.max_num_running,
            max_queue=config.max_queue,
            max_concurrency=config.max_concurrency,
        )

    async def chat(self, call: Call, model: str, request: ChatRequest) -> Answer:
        """Start answering a conversation. ``model``: as the client calls it.

        Raises:
            ApiError: it is refused, or the engine failed before its first token.
        """
        asked, cache = self._chat(call, model, request)
        with _own_numbers(cache):
            return await self._start(call, asked)

    async def complete(
        self,
        call: Call,
        model: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        caching: Caching,
        cache_name: str | None = None,
    ) -> Answer:
        """Start completing a prompt: a text or token ids, behind the text of a named cache. Raises as :meth:`chat`."""
        return await self._start(call, self._plain(call, model, prompt, sampling, caching, cache_name))

    async def consider(self, call: Call, model: str, request: ChatRequest) -> CacheUse:
        """What :meth:`chat` would ask of the cache as it is now. Nothing is begun, and nothing changes.

        Raises:
            ApiError: it would be refused.
        """
        asked, cache = self._chat(call, model, request)
        with _own_numbers(cache):
            return await self._considered(call, asked)

    async def consider_completion(
        self,
        call: Call,
        model: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        caching: Caching,
        cache_name: str | None = None,
    ) -> CacheUse:
        """What :meth:`complete` would ask of the cache, as :meth:`consider`."""
        return await self._considered(call, self._plain(call, model, prompt, sampling, caching, cache_name))

    async def warm(self, call: Call, model: str, content: Content, token_ids: Sequence[int], seconds: float) -> None:
        """Compute a prompt of ``token_ids``, and have it kept for that long. Tools of ``content`` must be callable.

        Raises as :meth:`chat`.
        """

        def prepare() -> Prepared:
            constraint = None
            if content.tools:
                constraint = self.engine.assembly.reply_format.constraint(
                    tools=content.tools, tool_choice="required", parallel=True, output=None, in_reasoning=False
                )
            sampling = SamplingParams(max_tokens=0, structured_outputs=constraint)
            parsers = [ReplyParser(tool_format=None, reasoning=False)]
            return Prepared({"prompt_token_ids": token_ids}, token_ids, sampling, parsers, [])

        asked = _Asked(model, Caching(), 1, prepare, beginning=Kept(len(token_ids), seconds))
        answer = await self._start(call, asked)
        await answer.collect()

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
        whole, cache = self.whole(call, request)
        with _own_numbers(cache):
            try:
                return len((await self._aside(call, lambda: self.render(whole))).prompt_token_ids)
            except Exception as error:
                raise as_api_error(error) from error

    async def beginning(self, call: Call, content: Content) -> tuple[Content, list[int]]:
        """``content`` as the model is shown it, and the tokens that all prompts begin with that begin with it.

        Raises:
            ApiError: it cannot be rendered, or is more than the context or the KV memory holds.
        """
        assembly = self.engine.assembly
        request = ChatRequest(messages=content.messages, sampling=SamplingParams(max_tokens=0))
        messages = without_volatile_system_lines(request, self._config.drop_system_lines).messages
        shown = replace(content, messages=messages)

        def tokens() -> list[int]:
            if shown.text is not None:
                found = self.engine.tokenizer.encode(shown.text)
            else:
                found = assembly.render_prefix(shown.messages, tools=shown.tools or None)
            assembly.engine.intake.check_prompt_length(len(found))
            return found

        try:
            return shown, await self._aside(call, tokens)
        except Exception as error:
            raise as_api_error(error) from error

    def whole(self, call: Call, request: ChatRequest) -> tuple[ChatRequest, NamedCache | None]:
        """What the model is shown for ``request``, the named cache it begins with included; and that cache.

        Raises:
            ApiError: there is no such cache (404), or it and the request do not go together (400).
        """
        own = without_volatile_system_lines(request, self._config.drop_system_lines)
        if own.cache is None:
            return own, None
        cache = self._cache(call, own.cache)
        return beginning_with(cache, own), cache

    def _cache(self, call: Call, name: str) -> NamedCache:
        return self.caches.get((call.caller or Caller()).tenant, name)

    def _prepare(self, request: ChatRequest) -> Prepared:
        """On a worker thread, as :meth:`_prepare_plain`: a long conversation takes milliseconds."""
        rendered = self.render(request)
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
        token_ids = rendered.prompt_token_ids
        names = place_names(request) if request.caching.marks else {}
        breakpoints = request.caching.breakpoints(_ends(rendered, request.caching, names), len(token_ids))
        sampling = _reading(sampling, request.caching)
        return Prepared(
            as_prompt(rendered),
            token_ids,
            sampling,
            parsers,
            breakpoints,
            frozenset(names.values()),
            bytes_of(request),
        )

    def _prepare_plain(self, prompt: Prompt, sampling: SamplingParams, caching: Caching) -> Prepared:
        if isinstance(prompt, str):
            token_ids = self.engine.tokenizer.encode(prompt)
            prompt = {"prompt": prompt, "prompt_token_ids": token_ids}
        else:
            token_ids = self.engine.assembly.engine.intake.check_tokens(prompt)
        parsers = [ReplyParser(tool_format=None, reasoning=False) for _ in range(sampling.n)]
        breakpoints = caching.breakpoints([], len(token_ids))
        return Prepared(prompt, token_ids, _reading(sampling, caching), parsers, breakpoints)

    def render(self, request: ChatRequest) -> RenderedChat:
        """The prompt of a conversation as it is, that of its named cache not included. Takes milliseconds.

        Raises:
            TemplateError, InvalidRequestError: the template refuses it.
        """
        return self.engine.assembly.render(
            request.messages,
            tools=request.tools or None,
            continue_final_message=request.continues_final_message,
            chat_template_kwargs=request.template_kwargs or None,
        )

    def _chat(self, call: Call, model: str, request: ChatRequest) -> tuple[_Asked, NamedCache | None]:
        whole, cache = self.whole(call, request)
        num_answers = whole.sampling.n
        return _Asked(model, whole.caching, num_answers, lambda: self._prepare(whole), whole, cache), cache

    def _plain(
        self,
        call: Call,
        model: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        caching: Caching,
        cache_name: str | None,
    ) -> _Asked:
        cache = None
        if cache_name is not None:
            cache, caching = self._cache(call, cache_name), replace(caching, reads=True)
            prompt = _continued(cache, prompt)
        prepare = partial(self._prepare_plain, prompt, sampling, caching)
        return _Asked(model, caching, sampling.n, prepare, beginning=cache)

    async def _start(self, call: Call, asked: _Asked) -> Answer:
        """Take a place first: whoever gets none costs nothing. From then on the answer, and with it the place, ends
        with its call.
        """
        caller, began = call.caller or Caller(), self.clock()
        call.cache_key = asked.caching.key
        leave = self.admission.admit(caller, asked.num_answers)
        try:
            prepared = await self._aside(call, asked.prepare)
            use = self._use(call, asked, prepared, began)
            record = use.record
            group = await self.engine.accept(
                prepared.prompt,
                prepared.sampling,
                cache_salt=caller.cache_salt,
                timeout=self._time_left(call),
                retain=use.retain,
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
            self.history.end(record, self.clock())
            leave()

        self._under_way.add(group.request_id)
        self.history.add(record)
        answer = Answer(self.engine.stream(group), prepared.parsers, use, call.enter(), self.ledger, ended)
        call.answers.append(answer)
        await answer.begin()
        self.by_key.count(caller.tenant, asked.caching.key, answer.usage, is_first=answer is call.answers[0])
        return answer

    async def _considered(self, call: Call, asked: _Asked) -> CacheUse:
        try:
            prepared = await self._aside(call, asked.prepare)
            await self.engine.accept(prepared.prompt, prepared.sampling)  # what is refused there is refused here
            return self._use(call, asked, prepared, self.clock())
        except Exception as error:
            raise as_api_error(error) from error

    def _use(self, call: Call, asked: _Asked, prepared: Prepared, began: float) -> CacheUse:
        """What a request asks of the cache as it is now, and a record of it. Nothing is changed yet."""
        caller, sampling = call.caller or Caller(), prepared.sampling
        record = Record(
            call.request_id,
            caller.tenant,
            caller.cache_salt,
            call.endpoint,
            asked.model,
            asked.request,
            array("i", prepared.token_ids),
            began,
            [array("i") for _ in prepared.parsers],
            reads=self._reads_cache and not sampling.skip_reading_prefix_cache and sampling.prompt_logprobs is None,
            request_bytes=prepared.request_bytes,
        )
        kept = (
            self._kept(asked.beginning, record.prompt) if isinstance(asked.beginning, NamedCache) else asked.beginning
        )
        return CacheUse(self.entries, self._config, asked.caching, prepared.breakpoints, record, kept, prepared.names)

    def _kept(self, cache: NamedCache, prompt: array[int]) -> Kept:
        """What of ``prompt`` is the cache's: all of it, unless the request changed how the template writes it."""
        return Kept(shared_prefix(cache.token_ids, prompt), cache.expires - self.clock())

    def _time_left(self, call: Call) -> float | None:
        if self._timeout is None:
            return None
        left = self._timeout - (time.monotonic() - call.started)
        if left <= 0:
            raise ApiError(ErrorKind.TIMEOUT, "the request was not begun within the time that this server allows")
        return left


def _reading(sampling: SamplingParams, caching: Caching) -> SamplingParams:
    return sampling if caching.reads else replace(sampling, skip_reading_prefix_cache=True)


def _ends(rendered: RenderedChat, caching: Caching, names: Mapping[Place, bytes]) -> list[End]:
    """Where the marks stand."""
    places = [mark.place for mark in caching.marks]
    now, later = rendered.ends(places, within_turn=True), rendered.ends(places)
    ends = zip(now, later, rendered.text_ends(places), places, strict=True)
    return [End(at, [end for end in shorter if end < at], names[place]) for at, *shorter, place in ends]


def _max_cache_tokens(config: ServerConfig, assembly: Assembly) -> int:
    if config.max_cache_tokens is not None:
        return config.max_cache_tokens
    return int(assembly.summary.num_tokens * assembly.engine.config.retention_budget)


def _continued(cache: NamedCache, prompt: str | Sequence[int]) -> str | Sequence[int]:
    """A text behind the cache's as one text; token ids behind the cache's."""
    check_kind(cache, "text")
    if isinstance(prompt, str):
        return f"{cache.content.text}{prompt}"
    return [*cache.token_ids, *prompt]


@contextmanager
def _own_numbers(cache: NamedCache | None) -> Iterator[None]:
    """Errors speak of the messages by the numbers they have in the request, not behind those of ``cache``."""
    try:
        yield
    except ApiError as error:
        if cache is None:
            raise
        raise renumbered(error, len(cache.content.messages), "cache") from error.__cause__
