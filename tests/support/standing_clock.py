"""A clock that a test sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds by which what is cached grows old."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
