"""Request: one answer being computed. RequestGroup: its prompt, and its siblings when ``n > 1``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.engine.outputs import FinishReason, RequestMetrics, TokenLogprobs
from octavo.engine.sampling_params import SamplingParams
from octavo.kv.sequence import SequenceBlocks

if TYPE_CHECKING:
    from octavo.engine.answer import AnswerText
    from octavo.engine.shaping import LogitShaping
    from octavo.text.grammar import Grammar


class RequestStatus(enum.Enum):
    WAITING = enum.auto()
    """Holds no blocks: new, or preempted."""
    LOADING = enum.auto()
    """Holds blocks that a tier reads into. Nothing of it is computed meanwhile."""
    RUNNING = enum.auto()
    FINISHED = enum.auto()


class RequestGroup:
    """What one caller asked for: a prompt, its parameters, and ``params.n`` requests that answer it."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        max_output_tokens: int,
        arrival_time: float,
        priority: int = 0,
        deadline: float | None = None,
        cache_salt: bytes = b"",
        retain: Sequence[tuple[int, float]] = (),
        grammar: Grammar | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.max_output_tokens = max_output_tokens
        self.priority = priority
        self.deadline = deadline
        self.cache_salt = cache_salt
        self.retain = retain
        """(tokens of the prompt, until when they are kept in the cache), the fewest tokens first."""
        self.grammar = grammar
        """Of an answer that has not begun; each request has its own copy."""
        self.metrics = RequestMetrics(arrival_time)
        self.requests: list[Request] = []
        self.num_cached_tokens: int | None = None
        """Of the prompt, when the group was first scheduled."""
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        """What has been scored so far, if it was asked for and is not yet given."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def reads_cache(self) -> bool:
        """Prompt log-probabilities need every row computed, so they do not read the cache."""
        params = self.params
        return params.use_cache and not params.skip_reading_prefix_cache and params.prompt_logprobs is None

    def take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """The prompt's log-probabilities, once: the first time they are complete."""
        scored = self.prompt_logprobs
        if scored is None or len(scored) < self.num_prompt_tokens:
            return None
        self.prompt_logprobs = None
        return scored

    @property
    def finished(self) -> bool:
        return all(request.status is RequestStatus.FINISHED for request in self.requests)


class Request:
    """One answer: its tokens, and how many of them have been computed. Only primary counters are stored.

    ::

        token_ids   | prompt tokens ............ | output tokens ...... |
                    | computed .............. | missing ............... |
                      num_computed_tokens       num_missing_tokens

    A request whose tokens are all computed draws its next one from the last row's logits. There is no prefill and no
    decode: a prompt is many missing tokens, a decode is one.
    """

    __slots__ = (
        "answer",
        "blocks",
        "cumulative_logprob",
        "finish_reason",
        "group",
        "index",
        "num_computed_tokens",
        "num_lost_prompt_tokens",
        "num_prompt_tokens",
        "num_retained",
        "num_table_blocks",
        "order",
        "seed",
        "shaping",
        "status",
        "stop_reason",
        "table_row",
        "table_version",
        "token_ids",
    )

    def __init__(self, group: RequestGroup, index: int, *, arrival: int, seed: int) -> None:
        self.group = group
        self.index = index
        self.order = (group.priority, arrival)
        """Older requests come first: lower priority value, then earlier arrival."""
        self.seed = seed
        self.token_ids = list(group.prompt_token_ids)
        self.num_prompt_tokens = group.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_lost_prompt_tokens = 0
        """Of the prompt, from its beginning: what a preemption took, until it is there again."""
        self.num_retained = 0
        """How many of the group's ``retain`` are done with the blocks it holds."""
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.cumulative_logprob: float | None = None
        self.blocks: SequenceBlocks
        self.answer: AnswerText
        self.shaping: LogitShaping | None = None
        # Row of the batch's arrays while running, and what of the block table has been written there.
        self.table_row = -1
        self.table_version = -1
        self.num_table_blocks = 0

    @property
    def params(self) -> SamplingParams:
        return self.group.params

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_missing_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_computed(self) -> bool:
        return self.num_computed_tokens >= self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.group.request_id!r}[{self.index}], {self.status.name}, "
            f"{self.num_computed_tokens}/{self.num_tokens} computed, {self.num_prompt_tokens} of prompt)"
        )
