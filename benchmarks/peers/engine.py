"""What a peer's file gives to be measured, and how it is measured: inside the peer's own process."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod

from benchmarks.peers.shapes import DECODE_STEPS, Shape, Timing

_LOWEST_TOKEN, _HIGHEST_TOKEN = 1000, 40_000
"""Ordinary tokens of the embedded model: no special ones, which an engine might treat otherwise."""


class Engine(ABC):
    """A loaded engine. It does one measurement at a time and nothing in between."""

    @property
    @abstractmethod
    def version(self) -> str:
        """For the table."""

    @abstractmethod
    def measure(self, shape: Shape, seed: int) -> Timing:
        """One measurement, on random prompts drawn from ``seed``."""

    def roof(self) -> tuple[float, float] | None:
        """Bytes and operations per second that the machine gives right now, if this engine can tell."""
        return None


class TokenEngine(Engine):
    """An engine that answers prompts of token ids in this process and has a prefix cache."""

    @abstractmethod
    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue all prompts together, greedily, by exactly ``num_tokens`` each. Reads and fills the prefix cache."""

    def measure(self, shape: Shape, seed: int) -> Timing:
        prompts = random_prompts(shape.count, shape.length, seed)
        first = self._seconds(prompts, 1)
        if shape.kind == "prefill":
            return Timing(first)
        if shape.kind == "ttft":
            longer = [prompts[0] + random_prompts(1, shape.new, seed + 1)[0]]
            return Timing(self._seconds(longer, 1), cold=first)
        # The prompts are cached by now: what both calls do beside the steps is little, and the same.
        one = self._seconds(prompts, 1)
        return Timing((self._seconds(prompts, DECODE_STEPS + 1) - one) / DECODE_STEPS)

    def _seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        began = time.perf_counter()
        answers = self.answer(prompts, num_tokens)
        seconds = time.perf_counter() - began
        lengths = [len(answer) for answer in answers]
        if lengths != [num_tokens] * len(prompts):
            raise RuntimeError(f"asked for {num_tokens} tokens for each of {len(prompts)} prompts, got {lengths}")
        return seconds


def random_prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random, so that no two share a prefix; the same for every engine."""
    rng = random.Random(seed)
    return [[rng.randrange(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(length)] for _ in range(count)]
