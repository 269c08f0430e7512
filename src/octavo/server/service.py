"""Service: the one way from a request to an answer, for every dialect."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from octavo.async_engine import AsyncEngine
from octavo.config import parse_bytes
from octavo.engine.assemble import Assembly
from octavo.engine.sampling_params import SamplingParams
from octavo.server.answers import Answer
from octavo.server.calls import Call, Caller
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind, as_api_error
from octavo.server.limits import Admission
from octavo.server.preparation import Preparation, Prepared
from octavo.server.prompt_cache.accounting import CacheUse
from octavo.server.prompt_cache.by_key import UsageByKey
from octavo.server.prompt_cache.caching import Caching, Kept
from octavo.server.prompt_cache.entries import Entries
from octavo.server.prompt_cache.history import History, Record
from octavo.server.prompt_cache.joining import beginning_with, going_on_with, renumbered
from octavo.server.prompt_cache.named import Content, NamedCache, NamedCaches
from octavo.server.prompt_cache.volatile import without_volatile_system_lines
from octavo.server.requests import ChatRequest, PlainRequest
from octavo.server.usage import Ledger
from octavo.text.common_prefix import common_prefix

_T = TypeVar("_T")
_LONG = 256 * 1024
"""Bytes of a request that takes more than a moment, and much memory, to be read: ten million characters take eight
seconds to be tokenised, and a gigabyte."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that is whole, before it is prepared.

    Attributes:
        model: as the client calls it.
        prepare: prepares it, on a worker thread.
        request: the conversation, for the history; ``None`` if it is none.
        beginning: what of its prompt is kept anyway.
    """

    model: str
    caching: Caching
    num_answers: int
    prepare: Callable[[], Prepared]
    request: ChatRequest | None = None
    beginning: NamedCache | Kept | None = None


class Service:
    """Admits, prepares and starts. One for each engine; lives on one event loop.

    Args:
        clock: seconds by which what is cached grows old; it never goes back.
    """

    def __init__(
        self, engine: AsyncEngine, config: ServerConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine = engine
        self.preparation = Preparation(engine.assembly)
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

    async def answer(self, call: Call, model: str, request: ChatRequest | PlainRequest) -> Answer:
        """Start answering a conversation, or completing a prompt. ``model``: as the client calls it.

        Raises:
            ApiError: it is refused, or the engine failed before its first token.
        """
        with self._asked(call, model, request) as asked:
            return await self._start(call, asked)

    async def consider(self, call: Call, model: str, request: ChatRequest | PlainRequest) -> CacheUse:
        """What :meth:`answer` would ask of the cache as it is now. Nothing is begun, and nothing changes.

        Raises:
            ApiError: it would be refused.
        """
        with self._asked(call, model, request) as asked:
            try:
                prepared = await self._aside(call, asked.prepare)
                await self.engine.accept(prepared.prompt, prepared.sampling)  # what is refused there is refused here
            except Exception as error:
                raise as_api_error(error) from error
            return self._use(call, asked, prepared, self.clock())

    async def warm(self, call: Call, model: str, content: Content, token_ids: Sequence[int], seconds: float) -> None:
        """Compute ``token_ids``, the beginning that ``content`` makes, and have it kept for that long.

        Raises as :meth:`answer`.
        """
        prepare = partial(self.preparation.prewarming, content, token_ids)
        asked = _Asked(model, Caching(), 1, prepare, beginning=Kept(len(token_ids), seconds))
        answer = await self._start(call, asked)
        await answer.collect()

    async def end_all(self) -> None:
        """End every answer that is under way, each with an error, and begin none any more."""
        self._ending = True
        for request_id in list(self._under_way):
            await self.engine.abort(request_id)

    async def count_tokens(self, call: Call, request: ChatRequest) -> int:
        """How many tokens the prompt of ``request`` has.

        Raises:
            ApiError: it cannot be rendered.
        """
        whole, cache = self._whole(call, request)
        with _own_numbers(cache):
            try:
                return len((await self._aside(call, lambda: self.preparation.render(whole))).prompt_token_ids)
            except Exception as error:
                raise as_api_error(error) from error

    async def beginning(self, call: Call, content: Content) -> tuple[Content, list[int]]:
        """``content`` as the model is shown it, and the tokens that all prompts begin with that begin with it.

        Raises:
            ApiError: it cannot be rendered, or is more than the context or the KV memory holds.
        """
        request = ChatRequest(messages=content.messages, sampling=SamplingParams(max_tokens=0))
        messages = without_volatile_system_lines(request, self._config.drop_system_lines).messages
        shown = replace(content, messages=messages)
        try:
            return shown, await self._aside(call, lambda: self.preparation.beginning(shown))
        except Exception as error:
            raise as_api_error(error) from error

    async def _aside(self, call: Call, work: Callable[[], _T]) -> _T:
        """What ``work`` returns, from a thread. Long requests take turns there: all others wait for none of them, and
        only one takes its memory at a time.
        """
        pool = self._long if call.body_size > _LONG else None
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    @contextmanager
    def _asked(self, call: Call, model: str, request: ChatRequest | PlainRequest) -> Iterator[_Asked]:
        """The request whole: behind its named cache, if it begins with one. Errors raised meanwhile speak of the
        client's own messages.

        Raises:
            ApiError: there is no such cache (404), or it and the request do not go together (400).
        """
        whole, cache = self._whole(call, request) if isinstance(request, ChatRequest) else self._joined(call, request)
        prepare = partial(self.preparation.prepare, whole)
        with _own_numbers(cache):
            conversation = whole if isinstance(whole, ChatRequest) else None
            yield _Asked(model, whole.caching, whole.sampling.n, prepare, conversation, cache)

    def _whole(self, call: Call, request: ChatRequest) -> tuple[ChatRequest, NamedCache | None]:
        """A conversation as the model is shown it, and the named cache it begins with."""
        own = without_volatile_system_lines(request, self._config.drop_system_lines)
        if own.cache is None:
            return own, None
        cache = self._cache(call, own.cache)
        return beginning_with(cache, own), cache

    def _joined(self, call: Call, request: PlainRequest) -> tuple[PlainRequest, NamedCache | None]:
        """The same of a prompt."""
        if request.cache is None:
            return request, None
        cache = self._cache(call, request.cache)
        return going_on_with(cache, request), cache

    def _cache(self, call: Call, name: str) -> NamedCache:
        return self.caches.get((call.caller or Caller()).tenant, name)

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

    def _use(self, call: Call, asked: _Asked, prepared: Prepared, began: float) -> CacheUse:
        """What a request asks of the cache as it is now, and a record of it. Nothing is changed yet."""
        caller, sampling = call.caller or Caller(), prepared.sampling
        record = Record(
            request_id=call.request_id,
            tenant=caller.tenant,
            salt=caller.cache_salt,
            endpoint=call.endpoint,
            model=asked.model,
            request=asked.request,
            prompt=array("i", prepared.token_ids),
            began=began,
            outputs=[array("i") for _ in prepared.parsers],
            reads=self._reads_cache and not sampling.skip_reading_prefix_cache and sampling.prompt_logprobs is None,
            request_bytes=prepared.request_bytes,
        )
        kept = (
            self._kept(asked.beginning, record.prompt) if isinstance(asked.beginning, NamedCache) else asked.beginning
        )
        return CacheUse(self.entries, self._config, asked.caching, prepared.breakpoints, record, kept, prepared.names)

    def _kept(self, cache: NamedCache, prompt: array[int]) -> Kept:
        """What of ``prompt`` is the cache's: all of it, unless the request changed how the template writes it."""
        return Kept(common_prefix(cache.token_ids, prompt), cache.expires - self.clock())

    def _time_left(self, call: Call) -> float | None:
        if self._timeout is None:
            return None
        left = self._timeout - (time.monotonic() - call.started)
        if left <= 0:
            raise ApiError(ErrorKind.TIMEOUT, "the request was not begun within the time that this server allows")
        return left


def _max_cache_tokens(config: ServerConfig, assembly: Assembly) -> int:
    if config.max_cache_tokens is not None:
        return config.max_cache_tokens
    return int(assembly.summary.num_tokens * assembly.engine.config.retention_budget)


@contextmanager
def _own_numbers(cache: NamedCache | None) -> Iterator[None]:
    """Errors speak of the messages by the numbers they have in the request, not behind those of ``cache``."""
    try:
        yield
    except ApiError as error:
        if cache is None:
            raise
        raise renumbered(error, len(cache.content.messages), "cache") from error.__cause__
