"""AsyncEngine: many asyncio consumers, one engine thread."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.assemble import Assembly, Messages, Progress, StartupSummary, assemble
from octavo.engine.engine import Engine
from octavo.engine.intake import Prompt, RequestOptions, as_prompt, check_salt, check_seconds
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import RequestGroup
from octavo.engine.sampling_params import SamplingParams
from octavo.engine.stats import EngineGauges, EngineReport, EngineStats
from octavo.engine.thread import EngineThread
from octavo.errors import EngineDeadError
from octavo.model.source import DEFAULT_MODEL
from octavo.text.chat import RenderedChat
from octavo.text.tokenizer import Tokenizer


class AsyncEngine:
    """Serves any number of asyncio tasks, of any number of event loops, from one engine thread.

    Args:
        model: a folder, a ``.gguf`` file, a hub id, or the name of the embedded model.
        revision: branch, tag or commit of a hub id.
        progress: told (bytes done, bytes in all) while the model is fetched and loaded.
        config: the fields of :class:`octavo.EngineConfig`.

    Raises:
        ModelError, ConfigError: see :func:`octavo.engine.assemble.assemble`.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        progress: Progress | None = None,
        **config: Any,
    ) -> None:
        self._start(assemble(model, EngineConfig.of(config), revision=revision, progress=progress))

    @classmethod
    def from_assembly(cls, assembly: Assembly) -> AsyncEngine:
        """Take over an engine that was assembled elsewhere; nobody else may drive it from now on."""
        self = cls.__new__(cls)
        self._start(assembly)
        return self

    def _start(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._thread = EngineThread(assembly.engine, _deliver)
        # Also when it is forgotten, or Python exits: a thread that is cut off in the native core ends the process.
        weakref.finalize(self, _shut_down, self._thread)

    @property
    def summary(self) -> StartupSummary:
        return self._assembly.summary

    @property
    def assembly(self) -> Assembly:
        """What the engine was assembled from, to look at and to render with; requests go through the methods here."""
        return self._assembly

    @property
    def tokenizer(self) -> Tokenizer:
        return self._assembly.tokenizer

    @property
    def is_healthy(self) -> bool:
        """Whether requests are served: ``False`` once the engine failed or was shut down."""
        return self._thread.is_healthy

    @property
    def failure(self) -> BaseException | None:
        """Why nothing is served any more, if so."""
        return self._thread.ended_by

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
        retain: Sequence[tuple[int, float]] = (),
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one prompt, in increments (see :class:`RequestOutput`) as they are computed.

        :meth:`accept` and :meth:`stream` in one.

        Args:
            priority: lower runs first.
            cache_salt: requests share cached blocks only under equal salts.
            timeout: seconds after which the answer ends as it is, with finish_reason ``"timeout"``.
            retain: (tokens of the prompt, seconds) for what is to stay in the cache; see :meth:`retain`.

        Raises:
            InvalidRequestError: the request cannot be served as given; before any output.
            EngineDeadError: the engine failed, now or earlier; ``__cause__`` says why.
        """
        group = await self.accept(
            prompt,
            sampling_params,
            request_id,
            priority=priority,
            cache_salt=cache_salt,
            timeout=timeout,
            retain=retain,
        )
        async with aclosing(self.stream(group)) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
        retain: Sequence[tuple[int, float]] = (),
        **template: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation: :meth:`generate` for what :meth:`render` makes of ``messages``.

        ``template``: ``tools``, ``documents``, ``add_generation_prompt``, ``continue_final_message``,
        ``chat_template``, ``chat_template_kwargs``.
        """
        group = await self.accept(
            as_prompt(await self.render(messages, **template)),
            sampling_params,
            request_id,
            priority=priority,
            cache_salt=cache_salt,
            timeout=timeout,
            retain=retain,
        )
        async with aclosing(self.stream(group)) as outputs:
            async for output in outputs:
                yield output

    async def accept(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
        retain: Sequence[tuple[int, float]] = (),
    ) -> RequestGroup:
        """Check a request, on a worker thread, and make of it what :meth:`stream` answers. Nothing is queued yet.

        Its ``timeout`` and the times of ``retain`` count from here.

        Raises:
            InvalidRequestError: the request cannot be served as given.
        """
        options = RequestOptions(priority, cache_salt, timeout, retain)
        params = SamplingParams() if sampling_params is None else sampling_params
        accept = self._assembly.engine.intake.accept
        return await asyncio.to_thread(accept, prompt, params, request_id=request_id, options=options)

    async def stream(self, group: RequestGroup) -> AsyncGenerator[RequestOutput, None]:
        """Answer what :meth:`accept` returned, in increments as they are computed. Once for each.

        The request is queued when the first increment is asked for: a generator that is never begun costs nothing. A
        consumer that is slower than the engine gets several steps' increments in one; the engine never waits for it.
        Closing or cancelling the generator aborts the request and frees its blocks before the next step.

        Raises:
            InvalidRequestError: its request_id is in use, or it was answered before; before any output.
            EngineDeadError: the engine failed, now or earlier; ``__cause__`` says why.
        """
        mailbox = _Mailbox(group.request_id)
        self._thread.submit(group, mailbox)
        try:
            while True:
                while (output := mailbox.take()) is None:
                    await mailbox.arrival()
                yield output
                if output.finished:
                    return
        finally:
            self._thread.abort(group.request_id, mailbox)

    async def render(self, messages: Messages, **template: Any) -> RenderedChat:
        """Render a conversation, on a worker thread, without answering it; see :meth:`Assembly.render`.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
            InvalidRequestError: these are not messages.
        """
        return await asyncio.to_thread(self._assembly.render, messages, **template)

    async def abort(self, request_id: str) -> None:
        """End a request before the next step; its consumer gets an output with finish_reason ``"abort"``."""
        self._thread.abort(request_id)

    async def reset_prefix_cache(self) -> int:
        """Forget every cached block that no request holds. Returns how many there were."""
        return await asyncio.wrap_future(self._thread.call(Engine.reset_prefix_cache))

    async def lookup(self, token_ids: Sequence[int], *, cache_salt: str | bytes = b"") -> int:
        """How many of ``token_ids`` a prompt of them would find cached now, at most all but the last.

        Raises:
            InvalidRequestError: these are no tokens of this model.
            EngineDeadError: the engine failed or was shut down.
        """
        tokens, salt = self._assembly.engine.intake.check_tokens(token_ids), check_salt(cache_salt)
        return await asyncio.wrap_future(self._thread.call(lambda engine: engine.lookup(tokens, salt)))

    async def retain(self, token_ids: Sequence[int], seconds: float, *, cache_salt: str | bytes = b"") -> int:
        """Keep what is cached of a prompt that begins with ``token_ids`` for ``seconds`` from now, at least.

        Other cached blocks are evicted before these, but memory that a request needs it gets: it is a wish. Retained
        are ``retention_budget`` of all blocks at most; beyond that, what was used longest ago is as any other.

        Returns:
            How many of ``token_ids`` are cached, and so retained.

        Raises:
            InvalidRequestError: these are no tokens of this model, or no seconds.
            EngineDeadError: the engine failed or was shut down.
        """
        tokens, salt = self._assembly.engine.intake.check_tokens(token_ids), check_salt(cache_salt)
        check_seconds(seconds, "seconds")
        return await asyncio.wrap_future(self._thread.call(lambda engine: engine.retain(tokens, seconds, salt)))

    async def release_retained(self, token_ids: Sequence[int], *, cache_salt: str | bytes = b"") -> None:
        """Keep what is cached of ``token_ids`` no longer than anything else, whoever retained it.

        Raises:
            InvalidRequestError: these are no tokens of this model.
            EngineDeadError: the engine failed or was shut down.
        """
        tokens, salt = self._assembly.engine.intake.check_tokens(token_ids), check_salt(cache_salt)
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.release_retained(tokens, salt)))

    async def stats(self) -> EngineStats:
        """The engine's counters, as of the step it is at."""
        return await asyncio.wrap_future(self._thread.call(Engine.snapshot))

    async def gauges(self) -> EngineGauges:
        """What is running, waiting and held, as of the step the engine is at."""
        return await asyncio.wrap_future(self._thread.call(Engine.gauges))

    async def report(self) -> EngineReport:
        """Counters and gauges of one moment; once nothing is served any more, as they were left."""
        try:
            return await asyncio.wrap_future(self._thread.call(Engine.report))
        except EngineDeadError:
            return self._assembly.engine.report()

    async def store_cached(self, token_ids: Sequence[int], *, cache_salt: str | bytes = b"") -> int:
        """Make what is cached of ``token_ids`` durable in the disk tier, as far as whole blocks go. Waits for it.

        Returns how many tokens are; 0 without a tier.

        Raises:
            InvalidRequestError: these are no tokens of this model.
            EngineDeadError: the engine failed, now or earlier.
        """
        tokens, salt = self._assembly.engine.intake.check_tokens(token_ids), check_salt(cache_salt)
        link = self._assembly.engine.tier
        if link is None:
            return 0
        before = -1
        while True:  # what a full queue drops is offered again, as long as that helps
            dropped = await asyncio.wrap_future(self._thread.call(lambda engine: engine.offer_cached(tokens, salt)))
            await asyncio.to_thread(link.tier.flush)
            if not dropped or dropped == before:
                break
            before = dropped
        return await asyncio.wrap_future(self._thread.call(lambda engine: engine.num_stored(tokens, salt)))

    def shutdown(self) -> None:
        """End the engine thread; whatever is unfinished fails. Waits for the step that runs.

        An engine that is forgotten, or still there when Python exits, is shut down by itself.
        """
        _shut_down(self._thread)


def _shut_down(thread: EngineThread) -> None:
    thread.shutdown()
    thread.engine.close()


class _Mailbox:
    """What has arrived for one consumer: increments not yet taken are merged, so it never holds more than one.

    Every token of every stream passes here, while the native core computes the next ones on all processors. So there
    is no coroutine of its own on the way, and a bare future in place of an event.
    """

    __slots__ = ("_error", "_pending", "_waiter", "loop", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self._pending: RequestOutput | None = None
        self._error: EngineDeadError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def take(self) -> RequestOutput | None:
        """What has arrived, if anything; raises if nothing more will."""
        output, self._pending = self._pending, None
        if output is None and self._error is not None:
            raise self._error
        return output

    def arrival(self) -> asyncio.Future[None]:
        """Done when something has arrived after nothing had."""
        self._waiter = self.loop.create_future()
        return self._waiter

    def put(self, output: RequestOutput) -> None:
        """On the consumer's loop."""
        if self._pending is None:
            self._pending = output
        else:
            self._pending.extend(output)
        self._ring()

    def fail(self, error: EngineDeadError) -> None:
        """On the engine's thread."""
        _call_soon(self.loop, self._set_error, error)

    def _set_error(self, error: EngineDeadError) -> None:
        self._error = error
        self._ring()

    def _ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _deliver(outputs: Sequence[tuple[_Mailbox, RequestOutput]]) -> list[str]:
    """Wake each event loop once with all it gets; returns the requests whose loop is closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, RequestOutput]]] = {}
    for mailbox, output in outputs:
        by_loop.setdefault(mailbox.loop, []).append((mailbox, output))
    gone = []
    for loop, items in by_loop.items():
        if not _call_soon(loop, _put_all, items):
            gone += [mailbox.request_id for mailbox, _ in items]
    return gone


def _put_all(items: list[tuple[_Mailbox, RequestOutput]]) -> None:
    for mailbox, output in items:
        mailbox.put(output)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Any, argument: object) -> bool:
    """Whether the loop takes the call; one that is closed has no consumer left to tell."""
    try:
        loop.call_soon_threadsafe(callback, argument)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
