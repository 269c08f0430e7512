"""Ctrl-C between steps, never within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Hold SIGINT back until the end of the block, then raise it again.

    An interrupt in the middle of a step would leave blocks that nobody gives back. Only the main thread
    receives signals, so elsewhere, and where SIGINT is not handled by Python, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    received = False

    def remember(number: int, frame: object) -> None:
        nonlocal received
        received = True

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if received:
            signal.raise_signal(signal.SIGINT)
