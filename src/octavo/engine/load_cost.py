"""LoadCost: whether reading blocks from a tier beats computing their tokens. Measured, not assumed."""

from __future__ import annotations

import time
from collections.abc import Callable

_MEMORY_SECONDS = 60.0
"""How long what was seen of loads counts for more than what was measured at the start."""
_WEIGHT = 0.25


class LoadCost:
    """What a token costs to compute and a block to load, in seconds.

    A load that was slower than the start promised makes the next ones less likely; after a minute the start's figure
    counts again, for what was slow may be quick by then.

    Args:
        seconds_per_token: of a prefill.
        seconds_per_block: of a load.
    """

    def __init__(
        self, seconds_per_token: float, seconds_per_block: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds_per_token = seconds_per_token
        self.seconds_per_block = seconds_per_block
        self._seen = seconds_per_block
        self._seen_at = float("-inf")
        self._clock = clock

    def prefers_load(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether ``num_blocks`` are read sooner than the ``num_tokens`` that they hold are computed."""
        recent = self._clock() - self._seen_at < _MEMORY_SECONDS
        per_block = self._seen if recent else self.seconds_per_block
        return num_blocks * per_block < num_tokens * self.seconds_per_token

    def observe(self, num_blocks: int, seconds: float) -> None:
        """A load of ``num_blocks`` took ``seconds``."""
        if self._clock() - self._seen_at >= _MEMORY_SECONDS:
            self._seen = self.seconds_per_block
        self._seen += _WEIGHT * (seconds / num_blocks - self._seen)
        self._seen_at = self._clock()
