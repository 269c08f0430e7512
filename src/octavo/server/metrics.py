"""Metrics: the ledger and the engine's report in Prometheus' words, put together when somebody asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from math import inf

from fastapi import APIRouter, Depends
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from octavo.async_engine import AsyncEngine
from octavo.engine.stats import EngineReport, TierReport
from octavo.kv.histogram import Histogram
from octavo.server.auth import require_admin
from octavo.server.usage import Ledger

PREFIX, VLLM = "octavo_", "vllm:"
REPORT_SECONDS = 1.0
"""So long a scrape waits for the engine to come between two steps; then it has to do with the report before."""


class Metrics:
    """What this server has to tell. Lives on its event loop.

    Args:
        model: the label ``model_name``.
        aliases: give those that vLLM has under its names too.
    """

    def __init__(self, engine: AsyncEngine, ledger: Ledger, model: str, *, aliases: bool) -> None:
        self._engine = engine
        self._ledger = ledger
        self._model = model
        self._aliases = aliases
        self._responses: Counter[int] = Counter()
        self._report: EngineReport | None = None

    def count_response(self, status: int) -> None:
        self._responses[status] += 1

    async def refresh(self) -> None:
        """Ask the engine how it is, and wait for a moment at most: a long step holds up no scrape."""
        try:
            self._report = await asyncio.wait_for(self._engine.report(), REPORT_SECONDS)
        except TimeoutError:  # the last report stands
            return

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client's registries do."""
        for metric in self._all():
            yield metric
            if self._aliases and metric.name not in _OURS:
                yield _alias(metric)

    def _all(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield self._counter("prompt_tokens", "Prompt tokens of requests.", ledger.total.prompt_tokens)
        yield self._counter(
            "prompt_tokens_cached", "Those among them that were read from the cache.", ledger.total.cached_tokens
        )
        yield self._counter("generation_tokens", "Tokens of answers.", ledger.total.output_tokens)
        yield self._counter(
            "reasoning_tokens", "Those among them that belong to reasoning.", ledger.total.reasoning_tokens
        )
        yield self._labelled("request_success", "Answers that ended, by how.", "finished_reason", ledger.outcomes)
        yield self._histogram("time_to_first_token_seconds", "From arrival to first token.", ledger.time_to_first_token)
        yield self._histogram("inter_token_latency_seconds", "Between two tokens delivered.", ledger.inter_token)
        yield self._histogram("e2e_request_latency_seconds", "From arrival to the end.", ledger.latency)
        yield self._histogram("request_queue_time_seconds", "Waiting to be scheduled.", ledger.queue_time)
        statuses = {str(status): count for status, count in sorted(self._responses.items())}
        yield self._labelled("http_responses", "HTTP responses, by status; 499: the client was gone.", "code", statuses)
        yield self._gauge("engine_up", "1 while the engine works, 0 once it has failed.", self._engine.is_healthy)
        if self._report is not None:
            yield from self._of_engine(self._report)

    def _of_engine(self, report: EngineReport) -> Iterator[Metric]:
        stats, gauges, tier = report
        yield self._gauge("num_requests_running", "Answers that hold blocks.", gauges.num_running)
        yield self._gauge("num_requests_waiting", "Answers that wait for blocks.", gauges.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of blocks that requests hold, 0 to 1.", gauges.kv_cache_usage)
        yield self._gauge("kv_blocks_active", "Blocks that requests hold.", gauges.num_active_blocks)
        yield self._gauge(
            "kv_blocks_cached", "Blocks that no request holds and a hit can find.", gauges.num_cached_blocks
        )
        yield self._gauge(
            "kv_blocks_retained", "Those among them that are evicted after all others.", gauges.num_retained_blocks
        )
        yield self._gauge("kv_blocks_free", "Blocks that hold nothing.", gauges.num_free_blocks)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.num_queried_tokens)
        yield self._counter("prefix_cache_hits", "Those among them that were there.", stats.num_cached_tokens)
        yield self._counter(
            "prompt_tokens_recomputed", "Prompt tokens computed again.", stats.num_recomputed_prompt_tokens
        )
        yield self._counter("num_preemptions", "Times an answer lost its blocks.", stats.num_preemptions)
        yield self._histogram("iteration_tokens_total", "Tokens computed in one step.", stats.tokens_per_step)
        yield self._histogram("kv_block_lifetime_seconds", "Cached blocks until evicted.", stats.block_lifetime)
        yield self._histogram(
            "kv_block_idle_before_evict_seconds", "The same, unused at the end.", stats.block_idle_before_evict
        )
        yield self._histogram("kv_block_reuse_gap_seconds", "Unused until taken again.", stats.block_reuse_gap)
        if tier is not None:
            yield from self._of_tier(tier, stats.num_cached_tokens)

    def _of_tier(self, report: TierReport, num_cached_tokens: int) -> Iterator[Metric]:
        stats, gauges, loaded = report
        hits = {"memory": num_cached_tokens - loaded, "disk": loaded}
        yield self._labelled("kv_tier_hits", "Prompt tokens read from the cache, by where they were.", "tier", hits)
        yield self._counter("kv_disk_loaded_bytes", "Bytes of blocks read from the disk.", stats.bytes_loaded)
        yield self._counter("kv_disk_loading_seconds", "Time of the threads that read them.", stats.seconds_loading)
        yield self._counter("kv_disk_stored_bytes", "Bytes of blocks written to the disk.", stats.bytes_stored)
        yield self._counter("kv_disk_storing_seconds", "Time of the thread that wrote them.", stats.seconds_storing)
        outcomes = {
            "stored": stats.num_stored,
            "loaded": stats.num_loaded,
            "missed": stats.num_missed,
            "dropped": stats.num_dropped,
            "failed": stats.num_failed,
            "damaged": stats.num_damaged,
            "evicted": stats.num_evicted,
            "expired": stats.num_expired,
        }
        yield self._labelled("kv_disk_blocks", "Blocks, by what became of them.", "outcome", outcomes)
        yield self._gauge("kv_disk_bytes", "Bytes of the folder's files.", gauges.num_bytes)
        yield self._gauge("kv_disk_limit_bytes", "Most bytes of them.", gauges.limit)
        yield self._gauge("kv_disk_blocks_held", "Blocks there that this engine can use.", gauges.num_own_blocks)
        foreign = gauges.num_blocks - gauges.num_own_blocks
        yield self._gauge("kv_disk_blocks_foreign", "Blocks there of other models or formats.", foreign)
        yield self._gauge("kv_disk_blocks_pinned", "Blocks there that are pinned.", gauges.num_pinned)
        yield self._gauge("kv_disk_queue_depth", "Blocks that wait to be written.", gauges.num_queued)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _labelled(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=["model_name", label])
        for of, value in values.items():
            family.add_metric([self._model, of], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=["model_name"])
        buckets = [("+Inf" if bound == inf else str(float(bound)), count) for bound, count in histogram.cumulative()]
        family.add_metric([self._model], buckets, histogram.sum)
        return family


def metrics_router(metrics: Metrics, *, for_admins: bool) -> APIRouter:
    """/metrics, for administrators alone or for whoever gets that far."""
    router = APIRouter(dependencies=[Depends(require_admin)] if for_admins else None)

    @router.get("/metrics")
    async def scrape(http: Request) -> Response:
        """Metrics in Prometheus' text format."""
        await metrics.refresh()
        encode, content_type = choose_encoder(http.headers.get("accept", ""))
        return Response(encode(metrics), headers={"content-type": content_type})

    return router


_OURS = frozenset(
    PREFIX + name
    for name in (
        "reasoning_tokens",
        "http_responses",
        "engine_up",
        "kv_blocks_active",
        "kv_blocks_cached",
        "kv_blocks_retained",
        "kv_blocks_free",
        "kv_tier_hits",
        "kv_disk_loaded_bytes",
        "kv_disk_loading_seconds",
        "kv_disk_stored_bytes",
        "kv_disk_storing_seconds",
        "kv_disk_blocks",
        "kv_disk_bytes",
        "kv_disk_limit_bytes",
        "kv_disk_blocks_held",
        "kv_disk_blocks_foreign",
        "kv_disk_blocks_pinned",
        "kv_disk_queue_depth",
    )
)
"""What vLLM has no name for."""


def _alias(metric: Metric) -> Metric:
    alias = Metric(VLLM + metric.name.removeprefix(PREFIX), metric.documentation, metric.type)
    alias.samples = [sample._replace(name=VLLM + sample.name.removeprefix(PREFIX)) for sample in metric.samples]
    return alias
