"""Progress on stderr: a bar where somebody watches, one line where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Told (done, in all)."""


@contextmanager
def byte_progress(what: str) -> Iterator[Report]:
    """Show how far ``what`` ("fetching smollm2") has come, in bytes.

    Nothing is shown before there is something to wait for: work that is done already stays silent.
    """
    with _progress(what, "{:,.0f} MB", 1e-6) as report:
        yield report


@contextmanager
def token_progress(what: str) -> Iterator[Report]:
    """Show how far ``what`` has come, in tokens."""
    with _progress(what, "{:,.0f} tokens", 1.0) as report:
        yield report


@contextmanager
def prompt_progress(what: str) -> Iterator[Report]:
    """Show how far ``what`` has come, in prompts."""
    with _progress(what, "{:,.0f} prompts", 1.0) as report:
        yield report


@contextmanager
def run_progress(what: str) -> Iterator[Report]:
    """Show how far ``what`` has come, in runs of a measurement."""
    with _progress(what, "{:,.0f} runs", 1.0) as report:
        yield report


@contextmanager
def _progress(what: str, amount: str, scale: float) -> Iterator[Report]:
    if sys.stderr.isatty():
        with _bar(what, amount, scale) as report:
            yield report
        return
    announced = False

    def announce(done: int, total: int) -> None:
        nonlocal announced
        if not announced and done < total:
            announced = True
            print(f"octavo: {what} ({amount.format(total * scale)})", file=sys.stderr, flush=True)

    yield announce


@contextmanager
def _bar(what: str, amount: str, scale: float) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(what, amount="")

    def report(done: int, total: int) -> None:
        if done < total:
            bar.start()
        far = f"{done * scale:,.0f} of {amount.format(total * scale)}"
        bar.update(task, completed=done, total=total, amount=far)

    try:
        yield report
    finally:
        bar.stop()
