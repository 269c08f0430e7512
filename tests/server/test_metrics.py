"""/metrics: every name, values that follow what was done, and an answer whatever the engine is at."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from held_engine import held
from live_server import LiveServer, live_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from octavo.server.config import ServerConfig

VLLM_NAMES = {
    "gauge": {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"},
    "counter": {
        "prefix_cache_queries",
        "prefix_cache_hits",
        "prompt_tokens",
        "prompt_tokens_cached",
        "prompt_tokens_recomputed",
        "generation_tokens",
        "num_preemptions",
        "request_success",
    },
    "histogram": {
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "iteration_tokens_total",
        "kv_block_lifetime_seconds",
        "kv_block_idle_before_evict_seconds",
        "kv_block_reuse_gap_seconds",
    },
}
PROMPT = "The river, the mountain and the sea. " * 8


@pytest.fixture
def server(live: LiveServer) -> Iterator[LiveServer]:
    """With counts of its own."""
    with live_server(live.engine, ServerConfig(shutdown_timeout=1)) as fresh:
        yield fresh


def values(server: LiveServer) -> dict[str, float]:
    """Sums over labels, but for buckets, by a sample's name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics", timeout=20).text):
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def complete(server: LiveServer, max_tokens: int = 5) -> dict[str, int]:
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    usage: dict[str, int] = httpx.post(f"{server.openai_url}/completions", json=body, timeout=60).json()["usage"]
    return usage


def test_every_name_of_vllm_s_is_there_with_its_kind_and_the_model(server: LiveServer) -> None:
    complete(server)
    text = httpx.get(f"{server.url}/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for kind, names in VLLM_NAMES.items():
        for name in names:
            family = found[f"octavo_{name}"]
            assert family.type == kind
            assert all(sample.labels["model_name"] == server.model for sample in family.samples)
    assert "vllm:" not in text and "tenant" not in text


def test_vllm_s_own_names_are_given_when_asked_for(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(vllm_metrics=True, shutdown_timeout=1)) as server:
        text = httpx.get(f"{server.url}/metrics").text
    found = {family.name: family.type for family in text_string_to_metric_families(text)}
    for kind, names in VLLM_NAMES.items():
        assert {name for name in names if found.get(f"vllm:{name}") != kind} == set()
    ours = {name.removeprefix("octavo_") for name in found if name.startswith("octavo_")}
    aliased = {name.removeprefix("vllm:") for name in found if name.startswith("vllm:")}
    assert aliased == set().union(*VLLM_NAMES.values()) <= ours


def test_counts_are_those_of_the_usage_that_clients_saw(server: LiveServer) -> None:
    usages = [complete(server), complete(server)]
    found = values(server)
    assert found["octavo_prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert found["octavo_generation_tokens_total"] == 10
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]  # type: ignore[index]
    assert found["octavo_prompt_tokens_cached_total"] == sum(cached) > 0
    assert found["octavo_request_success_total"] == 2
    assert found["octavo_time_to_first_token_seconds_count"] == 2
    assert found["octavo_request_queue_time_seconds_count"] == 2
    assert found["octavo_e2e_request_latency_seconds_count"] == 2
    assert found["octavo_inter_token_latency_seconds_count"] == 8
    assert found["octavo_http_responses_total"] == 2


def test_active_cached_and_free_blocks_are_told_apart(server: LiveServer) -> None:
    complete(server)
    server.until_idle()
    found = values(server)
    assert found["octavo_kv_blocks_active"] == found["octavo_kv_cache_usage_perc"] == 0
    assert found["octavo_kv_blocks_cached"] > 0
    blocks = sum(found[f"octavo_kv_blocks_{state}"] for state in ("active", "cached", "free"))
    assert blocks == server.run(server.engine.gauges()).num_blocks
    httpx.post(f"{server.url}/admin/cache/flush")
    assert values(server)["octavo_kv_blocks_cached"] == 0


def test_a_long_step_holds_up_no_scrape_and_the_last_report_stands(server: LiveServer) -> None:
    before = values(server)
    with held(server.engine):
        begun = time.monotonic()
        during = values(server)
        assert time.monotonic() - begun < 5
        assert httpx.get(f"{server.url}/version", timeout=2).status_code == 200
    assert during["octavo_kv_blocks_free"] == before["octavo_kv_blocks_free"]
    assert during["octavo_engine_up"] == 1


def test_refusals_are_counted_by_their_status(server: LiveServer) -> None:
    httpx.get(f"{server.url}/nothing")
    httpx.post(f"{server.openai_url}/completions", json={})
    text = httpx.get(f"{server.url}/metrics").text
    assert f'octavo_http_responses_total{{code="404",model_name="{server.model}"}} 1.0' in text
    assert f'octavo_http_responses_total{{code="400",model_name="{server.model}"}} 1.0' in text


def test_open_metrics_are_given_to_who_asks_for_them(server: LiveServer) -> None:
    complete(server)
    reply = httpx.get(f"{server.url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert {"octavo_prompt_tokens", "octavo_kv_blocks_cached"} <= {f.name for f in open_families(reply.text)}
