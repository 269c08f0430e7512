"""EngineThread: the one thread that drives an engine, and the queue of orders it takes between steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from octavo.engine.engine import Engine
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import RequestGroup
from octavo.errors import EngineDeadError, InvalidRequestError

_R = TypeVar("_R")


class Sink(Protocol):
    """Where one request's outputs go. Its methods are called on the engine's thread and must not block."""

    def fail(self, error: EngineDeadError) -> None:
        """Nothing more comes, for this reason."""


class EngineThread:
    """Runs an engine on a thread of its own. Every method may be called from any thread.

    Orders are carried out between steps, in the order given. When a step or the thread itself fails, every
    request and every order that waits is told the reason, and nothing is accepted any more.

    Args:
        deliver: hands one step's outputs to their sinks, without blocking. Returns the ids of requests whose
            consumers are gone; they are aborted.
    """

    def __init__(self, engine: Engine, deliver: Callable[[Sequence[tuple[Any, RequestOutput]]], list[str]]) -> None:
        self.engine = engine
        self._deliver = deliver
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # Accepting an order and ending the thread exclude each other, so that no order is forgotten.
        self._gate = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self._calls: set[Future[Any]] = set()
        self._ended_by: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    @property
    def is_healthy(self) -> bool:
        """Whether requests are served. ``False`` from the first failure on, and in a process forked off."""
        return self._ended_by is None and self._thread.is_alive()

    @property
    def ended_by(self) -> BaseException | None:
        """Why nothing is served any more, if so."""
        return self._ended_by

    def submit(self, group: RequestGroup, sink: Sink) -> None:
        """Add a request whose outputs go to ``sink``.

        Raises:
            EngineDeadError: the engine failed or was shut down.
            InvalidRequestError: the request_id is in use, or the request was submitted before.
        """
        with self._gate:
            self._require_alive()
            if group.requests:
                raise InvalidRequestError("a request is answered once; accept it again to have another answer")
            if group.request_id in self._sinks:
                raise InvalidRequestError(
                    f"request_id {group.request_id!r} is in use by a request that is not finished",
                    param="request_id",
                )
            self._sinks[group.request_id] = sink
            self._orders.put(lambda: self.engine.add(group))

    def abort(self, request_id: str, sink: Sink | None = None) -> None:
        """End a request before the next step; its sink gets a last output with finish_reason ``"abort"``.

        ``sink``: only if it is still that sink's request. Ids that ended are ignored.
        """
        with self._gate:
            known = self._sinks.get(request_id)
            if known is not None and (sink is None or sink is known):
                self._orders.put(lambda: self._abort(request_id))

    def call(self, function: Callable[[Engine], _R]) -> Future[_R]:
        """Run ``function`` on the engine's thread, between two steps.

        Raises:
            EngineDeadError: the engine failed or was shut down.
        """
        future: Future[_R] = Future()

        def order() -> None:
            self._calls.discard(future)
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self.engine))
            except Exception as error:
                future.set_exception(error)

        with self._gate:
            self._require_alive()
            self._calls.add(future)
            self._orders.put(order)
        return future

    def shutdown(self) -> None:
        """End the thread after the step it is in; whatever is unfinished fails. Waits; twice is harmless."""
        self._orders.put(_stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                while not self._orders.empty() or not self.engine.has_unfinished:
                    self._orders.get()()
                self._route(self.engine.step())
        except _StopError:
            self._end(EngineDeadError("it was shut down"))
        except BaseException as error:  # whatever it was: nobody may wait for a thread that is gone
            self._end(error)

    def _end(self, error: BaseException) -> None:
        with self._gate:
            self._ended_by = error
            sinks, calls = list(self._sinks.values()), list(self._calls)
            self._sinks.clear()
            self._calls.clear()
        self.engine.fail(error)
        for sink in sinks:
            sink.fail(self._death())
        for future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._death())

    def _route(self, outputs: Sequence[RequestOutput]) -> None:
        routed = [(self._sinks.get(output.request_id), output) for output in outputs]
        for output in outputs:
            if output.finished:
                self._sinks.pop(output.request_id, None)
        for request_id in self._deliver([(sink, output) for sink, output in routed if sink is not None]):
            self.engine.abort(request_id)
            self._sinks.pop(request_id, None)

    def _abort(self, request_id: str) -> None:
        output = self.engine.abort(request_id)
        if output is not None:
            self._route([output])

    def _require_alive(self) -> None:
        if self._ended_by is not None:
            raise self._death()
        if not self._thread.is_alive():  # it ends by itself only after it has said why
            raise EngineDeadError("this engine's thread stayed behind in the process that forked; make it anew here")

    def _death(self) -> EngineDeadError:
        """A new error for each who is told, with the first failure as its cause."""
        reason = self._ended_by
        cause = reason.__cause__ if isinstance(reason, EngineDeadError) and reason.__cause__ else reason
        error = EngineDeadError(f"the engine serves nothing more: {cause!r}")
        error.__cause__ = cause
        return error


class _StopError(Exception):
    """Ends the thread from within."""


def _stop() -> None:
    raise _StopError
