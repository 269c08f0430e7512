"""What a request gives back, in the shape users know from vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token under the model's own logits.

    ``rank``: 1 for the likeliest token. ``decoded_token``: the token's text on its own.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""Log-probabilities at one position by token id: the token that stands there, and the likeliest ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt.

    ``finish_reason``: ``"stop"`` (end-of-sequence token, stop token or stop string), ``"length"``,
    ``"abort"``, ``"timeout"``, or ``"error"`` when no token could be drawn; ``None`` while the answer goes on.
    ``stop_reason``: the stop string or stop token id that ended it, ``None`` for an end-of-sequence token.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, later: CompletionOutput) -> None:
        """Append what a later, incremental output of the same answer adds."""
        self.text += later.text
        self.token_ids.extend(later.token_ids)
        self.cumulative_logprob = later.cumulative_logprob
        if later.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(later.logprobs)
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of one monotonic clock (``time.monotonic``)."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0

    @property
    def time_in_queue(self) -> float | None:
        """Seconds from arrival until the request was first scheduled."""
        return _since(self.arrival_time, self.first_scheduled_time)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival until its first token (TTFT)."""
        return _since(self.arrival_time, self.first_token_time)

    @property
    def total_time(self) -> float | None:
        """Seconds from arrival until it finished."""
        return _since(self.arrival_time, self.finished_time)


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers: whole from ``generate`` and ``chat``, increments when streamed.

    An increment holds what is new since the one before: ``outputs`` lists the answers that changed, and their
    ``text``, ``token_ids`` and ``logprobs`` are the new part alone, so that joining them gives the whole.
    Everything else (``cumulative_logprob``, ``finish_reason``, ``finished``) is as of now. ``metrics`` is one object
    for all increments of a request and goes on being filled.

    ``num_cached_tokens``: prompt tokens that were read from the cache, at most all but the last.
    ``prompt_logprobs``: per prompt token, ``None`` for the first; given once, in the first output.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def extend(self, later: RequestOutput) -> None:
        """Append a later increment of the same request; ``later`` itself is left as it was."""
        known = {output.index: output for output in self.outputs}
        for output in later.outputs:
            if output.index in known:
                known[output.index].extend(output)
            else:
                self.outputs.append(_copy(output))
        self.outputs.sort(key=_index)
        self.finished = later.finished
        self.num_cached_tokens = later.num_cached_tokens
        self.metrics = later.metrics
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs


def _copy(output: CompletionOutput) -> CompletionOutput:
    return replace(
        output,
        token_ids=list(output.token_ids),
        logprobs=None if output.logprobs is None else list(output.logprobs),
    )


def _index(output: CompletionOutput) -> int:
    return output.index


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else moment - start
