"""Driver: an engine without a thread of its own, driven by whichever of its callers waits."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from octavo.engine.engine import Engine
from octavo.engine.interrupts import deferred_interrupts
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import RequestGroup
from octavo.errors import EngineDeadError

_R = TypeVar("_R")
_PATIENCE = 0.05
"""Seconds a caller sleeps at most before it looks around again: should a wake-up be lost, this is what it costs."""


class Inbox:
    """What has arrived for one caller, and a bell that wakes it.

    The bell is a bare lock and no ``threading.Event``: an interrupt in the wrong place leaves an event's own lock
    taken, and then whoever rings would hang.
    """

    __slots__ = ("_bell", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()

    def put(self, item: Any) -> None:
        self.items.append(item)
        self.ring()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has been rung and not yet heard
            self._bell.release()

    def wait(self) -> None:
        self._bell.acquire(timeout=_PATIENCE)


class Driver:
    """Lets any number of threads share an engine. Who waits for an output drives, for everybody who waits.

    Nobody waits for the right to drive: where one drives, the others sleep until something arrives for them, so none
    starves while another takes step after step. What changes the engine is an order, carried out before a step by
    whoever drives. So giving one is safe in any thread, in the middle of a step, from the garbage collector, and
    when Ctrl-C comes in between.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driving = threading.Lock()
        self._orders: deque[Callable[[], None]] = deque()
        self._inboxes: dict[str, Inbox] = {}
        self._waiting: dict[Inbox, None] = {}
        self._process = os.getpid()
        # When Python exits while a daemon thread drives: a thread cut off in the native core ends the process.
        weakref.finalize(self, _end_driving, self._driving, self._process)

    def add(self, groups: Iterable[RequestGroup], inbox: Inbox) -> None:
        """Have ``groups`` computed; their outputs, or the reason why not, arrive in ``inbox``."""
        for group in groups:
            self._orders.append(partial(self._add, group, inbox))

    def abandon(self, request_ids: Iterable[str]) -> None:
        """Abort requests whose caller is gone: now, or, if the engine is in a step, right after it."""
        for request_id in request_ids:
            self._orders.append(partial(self._abort, request_id))
        self._settle()

    def call(self, function: Callable[[Engine], _R]) -> _R:
        """Run ``function`` between two steps and return what it returns."""
        inbox = Inbox()

        def order() -> None:
            try:
                inbox.put((function(self._engine),))
            except Exception as error:
                inbox.put(error)

        self._orders.append(order)
        (result,) = self._next(inbox)
        return result  # type: ignore[no-any-return]

    def next(self, inbox: Inbox) -> RequestOutput:
        """The next output for ``inbox``; drives the engine while there is none.

        Raises:
            EngineDeadError: the engine failed, now or earlier.
        """
        output: RequestOutput = self._next(inbox)
        return output

    def _next(self, inbox: Inbox) -> Any:
        while not inbox.items:
            if self._drive(inbox):
                continue
            if os.getpid() != self._process:
                raise EngineDeadError("this process was forked off in the middle of a step; make the LLM anew here")
            self._waiting[inbox] = None
            try:
                inbox.wait()
            finally:
                self._waiting.pop(inbox, None)
        item = inbox.items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    def _drive(self, inbox: Inbox) -> bool:
        """Carry out all orders, and take one step if ``inbox`` is empty then; ``False`` if another thread drives."""
        try:
            with deferred_interrupts():
                if not self._driving.acquire(blocking=False):
                    return False
                try:
                    self._carry_out()
                    if not inbox.items:
                        self._step()
                finally:
                    self._driving.release()
        finally:
            # Whoever drove may not come back for a while: another one that waits has its chance.
            for other in list(self._waiting)[:1]:
                other.ring()
            self._settle()
        return True

    def _settle(self) -> None:
        """Carry out orders that came while somebody drove, so that none is left when nobody does any more."""
        if not self._orders:  # whoever gives one now settles it, too
            return
        with deferred_interrupts():
            while self._orders and self._driving.acquire(blocking=False):
                try:
                    self._carry_out()
                finally:
                    self._driving.release()

    def _carry_out(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _step(self) -> None:
        for output in self._engine.step():
            inbox = self._inboxes.get(output.request_id)
            if output.finished:
                self._inboxes.pop(output.request_id, None)
            if inbox is not None:
                inbox.put(output)

    def _add(self, group: RequestGroup, inbox: Inbox) -> None:
        try:
            self._engine.add(group)
        except Exception as error:  # it belongs to the caller who asked, not to the one who drives
            inbox.put(error)
        else:
            self._inboxes[group.request_id] = inbox

    def _abort(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)
        self._engine.abort(request_id)


def _end_driving(driving: threading.Lock, process: int) -> None:
    """Wait for the step that runs, and let no other begin."""
    if os.getpid() == process:  # a lock that was taken at a fork is never given back
        driving.acquire()
