"""The ledger: what every request used, counted once. Usage fields, metrics and logs are renderings of it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from octavo.engine.outputs import RequestMetrics, RequestOutput
from octavo.kv.histogram import Histogram
from octavo.server.prompt_cache.accounting import Figures
from octavo.server.prompt_cache.caching import FIVE_MINUTES, HALF_A_DAY, HOUR

TO_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
BETWEEN_TOKENS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
LATENCY = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
"""Upper bounds of buckets in seconds: vLLM's, and finer where a CPU is fast."""


@dataclass(slots=True)
class Usage:
    """Tokens of one request.

    Attributes:
        prompt_tokens: of the whole prompt, counted once for all answers to it.
        cached_tokens: those among them that were read from the cache.
        read_tokens: those that are reported as read, by the rules of the API.
        written_tokens: those that are reported as written, by the seconds they are kept.
        output_tokens: of all answers together, end tokens included.
        reasoning_tokens: those among them that belong to reasoning.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0
    written_tokens: Counter[int] = field(default_factory=Counter)
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def openai(self) -> dict[str, Any]:
        """``usage`` of chat completions and completions: prompt_tokens includes what was cached."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.read_tokens,
                "cache_write_tokens": self.written_tokens.total(),
            },
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    def openai_responses(self) -> dict[str, Any]:
        """``usage`` of responses. The API knows two times to live: what is kept for less than twelve hours counts as
        the one, for twelve or more as the other.
        """
        long = sum(tokens for ttl, tokens in self.written_tokens.items() if ttl >= HALF_A_DAY)
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.read_tokens,
                "cache_write_tokens": self.written_tokens.total(),
                "cache_write_tokens_details": {
                    "ttl_30m_tokens": self.written_tokens.total() - long,
                    "ttl_12h_tokens": long,
                },
            },
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }

    def anthropic(self) -> dict[str, Any]:
        """``usage`` of messages: input_tokens excludes what was read from the cache and what was written to it."""
        written = self.written_tokens.total()
        return {
            "input_tokens": self.prompt_tokens - self.read_tokens - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": self.read_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_tokens[FIVE_MINUTES],
                "ephemeral_1h_input_tokens": self.written_tokens[HOUR],
            },
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"thinking_tokens": self.reasoning_tokens},
        }

    def opentelemetry(self) -> dict[str, int]:
        """Attributes of a span, after the semantic conventions for generative AI: input includes cached."""
        return {
            "gen_ai.usage.input_tokens": self.prompt_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": self.read_tokens,
            "gen_ai.usage.cache_creation.input_tokens": self.written_tokens.total(),
        }

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.read_tokens += other.read_tokens
        self.written_tokens += other.written_tokens
        self.output_tokens += other.output_tokens
        self.reasoning_tokens += other.reasoning_tokens


@dataclass(slots=True)
class Entry:
    """One admitted request in the ledger.

    Attributes:
        started: when its HTTP request arrived, in seconds of ``time.monotonic``.
        outcomes: how each of its answers ended: ``stop``, ``length``, ``abort`` (client gone), ``timeout``, ``error``.
        times: the engine's own; ``None`` if it never got there.
    """

    request_id: str
    endpoint: str
    tenant: str
    started: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    outcomes: list[str] = field(default_factory=list)
    times: RequestMetrics | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the HTTP request's arrival, so that rendering counts."""
        first = None if self.times is None else self.times.first_token_time
        return None if first is None else first - self.started


class Ledger:
    """Totals over all requests since the start, live: they grow with each increment that is delivered.

    Attributes:
        total: tokens of all requests.
        outcomes: how many answers ended how; see :class:`Entry`.
        time_to_first_token, queue_time, latency: seconds of each request: until its first token, until it was first
            scheduled, until it ended.
        inter_token: seconds between a token and the one before it, as they were delivered.
    """

    def __init__(self) -> None:
        self.total = Usage()
        self.outcomes: Counter[str] = Counter()
        self.time_to_first_token = Histogram(TO_FIRST_TOKEN)
        self.queue_time = Histogram(LATENCY)
        self.latency = Histogram(LATENCY)
        self.inter_token = Histogram(BETWEEN_TOKENS)

    def begin(self, entry: Entry, first: RequestOutput, figures: Figures) -> None:
        """The engine has given a first output: what is known of the prompt from then on."""
        entry.times = times = first.metrics
        for usage in (entry.usage, self.total):
            usage.prompt_tokens += len(first.prompt_token_ids)
            usage.cached_tokens += first.num_cached_tokens
            usage.read_tokens += figures.read
            usage.written_tokens += figures.written
        if entry.time_to_first_token is not None:
            self.time_to_first_token.observe(entry.time_to_first_token)
        if times.time_in_queue is not None:
            self.queue_time.observe(times.time_in_queue)

    def count_output(self, entry: Entry, output_tokens: int, reasoning_tokens: int) -> None:
        for usage in (entry.usage, self.total):
            usage.output_tokens += output_tokens
            usage.reasoning_tokens += reasoning_tokens

    def count_gap(self, seconds: float, num_tokens: int) -> None:
        """``num_tokens`` were delivered at once, ``seconds`` after those before them."""
        for _ in range(num_tokens):
            self.inter_token.observe(seconds / num_tokens)

    def close(self, entry: Entry) -> None:
        """The request of ``entry`` has ended. Called once for each."""
        self.outcomes.update(entry.outcomes)
        if entry.times is not None:
            self.latency.observe(time.monotonic() - entry.started)
