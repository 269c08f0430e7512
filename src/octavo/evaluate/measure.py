"""What is measured, once a model is loaded: windows of text, facts recalled, and the speed of decode, in every format.

All lanes take each piece of text in turn, and bf16 is the first of them: its logits are compared with the others' and
forgotten, so that no more than two pieces' logits exist at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.evaluate.lane import Lane
from octavo.evaluate.metrics import Reference, Rows, log_sums
from octavo.evaluate.recall import DEPTHS, Haystack
from octavo.evaluate.report import ContextQuality, Recall

Int32s = npt.NDArray[np.int32]
Progress = Callable[[int, int], None]
"""Told (tokens done, tokens in all)."""

MOST_ROWS = 128
"""Tokens computed in one pass, and rows of logits that exist at once in each of two buffers."""
_MOST_LOGITS = 2**23
"""In one buffer: fewer rows where the vocabulary is large."""
_STEPS, _MOST_ROUNDS, _SECONDS = 4, 8, 1.0
"""Decode is timed in rounds of so many steps of each lane: so many rounds, or as many as begin in this time a lane."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is computed at one length of context: whole windows of text, and haystacks with their questions."""

    context: int
    windows: Sequence[Int32s]
    haystacks: Sequence[Haystack]

    @property
    def num_tokens(self) -> int:
        """That one lane computes of it."""
        return sum(map(len, self.windows)) + sum(len(haystack.tokens) for haystack in self.haystacks)


def rows_at_once(vocab_size: int) -> int:
    """Rows of logits in one buffer."""
    return min(MOST_ROWS, max(_MOST_LOGITS // vocab_size, 16))


class Measurement:
    """Lanes of one model, the first in bf16, and what is found out with them.

    Args:
        progress: told how many of ``total`` tokens all lanes together have computed.
    """

    def __init__(self, lanes: Sequence[Lane], vocab_size: int, progress: Progress, total: int) -> None:
        rows = rows_at_once(vocab_size)
        self._lanes = lanes
        self._logits = np.empty((rows, vocab_size), np.float32)
        self._others = np.empty((rows, vocab_size), np.float32)
        self._progress = progress
        self._done, self._total = 0, total

    def at(self, material: Material) -> list[ContextQuality]:
        """The quality of every lane at one length of context, in their order."""
        parts: list[list[Rows]] = [[] for _ in self._lanes]
        for window in material.windows:
            for lane_parts, rows in zip(parts, self.window(window), strict=True):
                lane_parts.append(rows)
        # The last window is still there, so that a step is one of a sequence of this length.
        speeds = self.decode_speeds(material.windows[-1])
        found = []
        for lane, lane_parts, speed in zip(self._lanes, parts, speeds, strict=True):
            rows = Rows.join(lane_parts)
            quality = ContextQuality(
                context=material.context,
                num_tokens=len(rows.nll),
                perplexity=rows.perplexity,
                kl_mean=float(rows.kl.mean()),
                kl_p99=float(np.quantile(rows.kl, 0.99, method="higher")),
                top1_agreement=float(rows.agrees.mean()),
                recall=self.recall(lane, material.haystacks) if material.haystacks else None,
                decode_tokens_per_second=speed,
            )
            found.append(quality)
        return found

    def window(self, tokens: Int32s) -> list[Rows]:
        """One window in every lane: an entry for each token but the last, which nothing follows."""
        parts: list[list[Rows]] = [[] for _ in self._lanes]
        for start in range(0, len(tokens), len(self._logits)):
            piece = tokens[start : start + len(self._logits)]
            targets = tokens[start + 1 : start + 1 + len(piece)]
            rows = np.arange(len(targets), dtype=np.int32)
            logits = self._lanes[0].forward(piece, start, rows, self._logits)
            reference = Reference(logits)
            for lane, lane_parts in zip(self._lanes, parts, strict=True):
                if lane is not self._lanes[0]:
                    logits = lane.forward(piece, start, rows, self._others)
                lane_parts.append(reference.compare(logits, targets))
                self._advance(len(piece))
        return [Rows.join(lane_parts) for lane_parts in parts]

    def recall(self, lane: Lane, haystacks: Sequence[Haystack]) -> Recall:
        """Every haystack's questions, each asked of the text alone: what an earlier one left is written over."""
        logprobs = np.empty((len(haystacks), len(DEPTHS)))
        correct = np.empty((len(haystacks), len(DEPTHS)), bool)
        for number, haystack in enumerate(haystacks):
            length = len(haystack.tokens)
            for start in range(0, length, MOST_ROWS):
                piece = haystack.tokens[start : start + MOST_ROWS]
                lane.forward(piece, start, _NO_ROWS, self._others)
                self._advance(len(piece))
            for depth, question in enumerate(haystack.questions):
                asked, answer = question.tokens[:-1], question.tokens[-question.num_answer_tokens :]
                rows = np.arange(len(asked) - len(answer), len(asked), dtype=np.int32)
                logits = lane.forward(asked, length, rows, self._others)
                sound = logits[np.arange(len(answer)), answer] - log_sums(logits)
                logprobs[number, depth] = np.nan_to_num(sound, nan=-np.inf).sum()
                correct[number, depth] = (logits.argmax(axis=1) == answer).all()
        return Recall(DEPTHS, tuple(logprobs.mean(axis=0).tolist()), float(correct.mean()), correct.size)

    def decode_speeds(self, window: Int32s) -> list[float]:
        """Tokens per second of one sequence, for every lane, at the end of the window that was computed last.

        Lanes take turns, for a shared machine does not stay equally fast, and the median step counts.
        """
        last, position = window[-1:], len(window) - 1
        rows = np.zeros(1, np.int32)
        times: list[list[float]] = [[] for _ in self._lanes]
        began = time.perf_counter()
        for _ in range(_MOST_ROUNDS):
            for lane, lane_times in zip(self._lanes, times, strict=True):
                lane.forward(last, position, rows, self._others)  # brings what it reads to where it is read from
                for _ in range(_STEPS):
                    moment = time.perf_counter()
                    lane.forward(last, position, rows, self._others)
                    lane_times.append(time.perf_counter() - moment)
            if time.perf_counter() - began > _SECONDS * len(self._lanes):
                break
        return [1 / statistics.median(lane_times) for lane_times in times]

    def _advance(self, num_tokens: int) -> None:
        self._done += num_tokens
        self._progress(self._done, self._total)


_NO_ROWS = np.empty(0, np.int32)
