"""One ledger: usage in every dialect, /metrics and the logs are renderings of the same counts, whatever happens."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from array import array
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from octavo.errors import EngineDeadError
from octavo.server.answers import Answer
from octavo.server.calls import Call
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError
from octavo.server.logs import JsonLines, log_call
from octavo.server.metrics import Metrics
from octavo.server.prompt_cache.accounting import CacheUse
from octavo.server.prompt_cache.caching import Breakpoint, Caching
from octavo.server.prompt_cache.entries import Entries
from octavo.server.prompt_cache.history import Record
from octavo.server.usage import Ledger, Usage
from octavo.text.reply import ReplyParser

REASONS = get_args(FinishReason)


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    """What happens to one request: its prompt, what the engine gives, and how it ends."""
    n = draw(st.integers(1, 3))
    prompt = draw(st.integers(1, 50))
    steps = []
    alive = set(range(n))
    for _ in range(draw(st.integers(1, 6))):
        outputs = []
        for choice in sorted(draw(st.sets(st.sampled_from(sorted(alive)), min_size=1)) if alive else ()):
            reason = draw(st.sampled_from([None, None, None, *REASONS]))
            outputs.append((choice, draw(st.integers(0, 3)), reason))
            if reason is not None:
                alive.discard(choice)
        steps.append(outputs)
    return {
        "n": n,
        "prompt": prompt,
        "cached": draw(st.integers(0, prompt - 1)),
        "steps": steps,
        "ends": draw(st.sampled_from(["read", "engine fails", "hangs up", "hangs up at once"])),
        "taken": draw(st.integers(0, 6)),
        "reasons": draw(st.booleans()),
        "kept": draw(st.none() | st.sampled_from([300, 1800, 3600])),
    }


def cache_use(num_tokens: int, num_answers: int, kept: int | None = None) -> CacheUse:
    """Of a prompt that is kept, if at all, up to its end."""
    record = Record("req_1", "default", b"", "/v1/completions", "m", None, array("i", [0] * num_tokens), 0.0)
    record.outputs = [array("i") for _ in range(num_answers)]
    breakpoints = [] if kept is None else [Breakpoint(num_tokens, 1, kept)]
    return CacheUse(Entries(lambda: 0.0), ServerConfig(), Caching(), breakpoints, record)


async def outputs(story: dict[str, Any]) -> AsyncGenerator[RequestOutput, None]:
    if story["ends"] == "hangs up at once":
        await asyncio.Future()
    metrics = RequestMetrics(0.0, 1.0, 2.0)
    left = story["n"]
    for step in story["steps"]:
        completions = [CompletionOutput(c, "x" * k, list(range(k)), finish_reason=reason) for c, k, reason in step]
        left -= sum(reason is not None for _, _, reason in step)
        yield RequestOutput("r", None, [0] * story["prompt"], completions, left == 0, story["cached"], metrics)
        if left == 0:
            return
    if story["ends"] == "engine fails":
        raise EngineDeadError("it failed")
    await asyncio.Future()


async def play(story: dict[str, Any], ledger: Ledger, released: Counter[str]) -> Call:
    """The request, as an endpoint sees to it."""
    call = Call("/v1/completions")
    parsers = [
        ReplyParser(tool_format=None, reasoning=story["reasons"], in_reasoning=story["reasons"])
        for _ in range(story["n"])
    ]

    def release() -> None:
        released[call.request_id] += 1

    use = cache_use(story["prompt"], story["n"], story["kept"])
    answer = Answer(outputs(story), parsers, use, call.enter(), ledger, release)
    call.answers.append(answer)

    async def endpoint() -> None:
        await answer.begin()
        taken = 0
        async for _ in answer.increments():
            taken += 1
            if story["ends"] == "hangs up" and taken > story["taken"]:
                return

    task = asyncio.create_task(endpoint())
    await asyncio.wait({task}, timeout=0.002)
    task.cancel()  # the client is gone
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is not None:
        assert isinstance(task.exception(), ApiError)
    await call.close()
    call.status, call.ended = 200, call.started + 1
    return call


class NoEngine:
    is_healthy = True


def lines_of(calls: list[Call]) -> list[dict[str, Any]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("octavo.server.requests")
    logger.addHandler(handler)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.INFO)
    try:
        for call in calls:
            log_call(call, "m")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@given(st.lists(stories(), min_size=1, max_size=8))
def test_usage_metrics_and_logs_agree_whatever_becomes_of_requests(told: list[dict[str, Any]]) -> None:
    ledger, released = Ledger(), Counter[str]()

    async def all_of_them() -> list[Call]:
        return list(await asyncio.gather(*(play(story, ledger, released) for story in told)))

    calls = asyncio.run(all_of_them())
    assert released == {call.request_id: 1 for call in calls}
    for story, call in zip(told, calls, strict=True):
        check_views(call.usage)
        [entry] = call.entries
        assert len(entry.outcomes) == story["n"]
        if story["ends"] == "hangs up at once":
            assert entry.usage == Usage()
        else:
            assert (entry.usage.prompt_tokens, entry.usage.cached_tokens) == (story["prompt"], story["cached"])
            written = 0 if story["kept"] is None else story["prompt"] - story["cached"]
            assert (entry.usage.read_tokens, entry.usage.written_tokens.total()) == (story["cached"], written)
        assert entry.usage.reasoning_tokens == (entry.usage.output_tokens if story["reasons"] else 0)

    total = Usage()
    for call in calls:
        total.add(call.usage)
    assert ledger.total == total

    lines = lines_of(calls)
    exposed = scraped(Metrics(NoEngine(), ledger, "m", aliases=True))  # type: ignore[arg-type]
    for line_name, metric in (
        ("prompt_tokens", "prompt_tokens"),
        ("cached_tokens", "prompt_tokens_cached"),
        ("output_tokens", "generation_tokens"),
        ("reasoning_tokens", "reasoning_tokens"),
    ):
        wanted = getattr(total, line_name)
        assert sum(line[line_name] for line in lines) == wanted
        assert exposed[f"octavo_{metric}_total", ""] == wanted
    outcomes = Counter(outcome for line in lines for outcome in line["finish_reasons"])
    for outcome, count in outcomes.items():
        assert exposed["octavo_request_success_total", outcome] == count
        assert exposed["vllm:request_success_total", outcome] == count
    begun = sum(story["ends"] != "hangs up at once" for story in told)
    assert exposed["octavo_e2e_request_latency_seconds_count", ""] == begun
    assert exposed["octavo_time_to_first_token_seconds_count", ""] == begun


def check_views(usage: Usage) -> None:
    """Every dialect's figures for the same request, against each other."""
    openai, responses, anthropic, otel = (
        usage.openai(),
        usage.openai_responses(),
        usage.anthropic(),
        usage.opentelemetry(),
    )
    prompt = anthropic["input_tokens"] + anthropic["cache_read_input_tokens"] + anthropic["cache_creation_input_tokens"]
    assert prompt == openai["prompt_tokens"] == responses["input_tokens"] == otel["gen_ai.usage.input_tokens"]
    created = anthropic["cache_creation_input_tokens"]
    assert created == openai["prompt_tokens_details"]["cache_write_tokens"]
    assert created == responses["input_tokens_details"]["cache_write_tokens"]
    assert created == otel["gen_ai.usage.cache_creation.input_tokens"]
    assert (
        anthropic["cache_read_input_tokens"]
        == openai["prompt_tokens_details"]["cached_tokens"]
        == responses["input_tokens_details"]["cached_tokens"]
        == otel["gen_ai.usage.cache_read.input_tokens"]
    )
    assert (
        anthropic["output_tokens"]
        == openai["completion_tokens"]
        == responses["output_tokens"]
        == otel["gen_ai.usage.output_tokens"]
    )
    assert openai["total_tokens"] == responses["total_tokens"] == prompt + anthropic["output_tokens"]
    thought = openai["completion_tokens_details"]["reasoning_tokens"]
    assert thought == responses["output_tokens_details"]["reasoning_tokens"] <= anthropic["output_tokens"]
    assert all(isinstance(figure, int) and figure >= 0 for figure in (*otel.values(), anthropic["input_tokens"]))


def scraped(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Values by a sample's name and its ``finished_reason``."""
    text = generate_latest(metrics).decode()  # type: ignore[arg-type]
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


async def test_tokens_that_arrive_together_count_as_many_gaps() -> None:
    ledger = Ledger()
    ledger.count_gap(0.3, 3)
    assert (ledger.inter_token.count, round(ledger.inter_token.sum, 9)) == (3, 0.3)
    assert dict(ledger.inter_token.cumulative())[0.1] == 3


async def test_tokens_count_as_reasoning_up_to_the_marker_that_ends_it() -> None:
    ledger, call = Ledger(), Call("/v1/messages")
    texts = ["<think>", "Hm", "m.", "</think>", "Yes", "."]

    async def outputs() -> AsyncGenerator[RequestOutput, None]:
        for place, text in enumerate(texts):
            ends = place == len(texts) - 1
            output = CompletionOutput(0, text, [place], finish_reason="stop" if ends else None)
            yield RequestOutput("r", None, [1], [output], ends, 0, RequestMetrics(0.0))

    parser = ReplyParser(tool_format=None, reasoning=True)
    answer = Answer(outputs(), [parser], cache_use(1, 1), call.enter(), ledger, lambda: None)
    await answer.begin()
    [reply] = await answer.collect()
    assert (reply.reasoning, reply.text) == ("Hmm.", "Yes.")
    assert (answer.usage.output_tokens, answer.usage.reasoning_tokens) == (6, 4)
