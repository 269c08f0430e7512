"""What is told of a disk tier: to the token, the block and the byte, in metrics and to administrators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live_server import LiveServer, served_model
from prometheus_client.parser import text_string_to_metric_families

PROMPT = "The river, the mountain and the sea. " * 20


@pytest.fixture
def server(smollm2_gguf: Path, tmp_path: Path) -> Iterator[LiveServer]:
    with served_model(smollm2_gguf, kv_disk=tmp_path / "kv", kv_disk_limit="64MiB") as live:
        yield live


def samples(server: LiveServer) -> dict[tuple[str, str], float]:
    text = httpx.get(f"{server.url}/metrics").text
    return {
        (sample.name.removeprefix("octavo_kv_"), sample.labels.get("tier") or sample.labels.get("outcome") or ""): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("octavo_kv_disk", "octavo_kv_tier"))
    }


def complete(server: LiveServer) -> tuple[int, int]:
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    usage = httpx.post(f"{server.openai_url}/completions", json=body, timeout=60).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_hits_bytes_and_blocks_are_those_that_were(server: LiveServer) -> None:
    num_tokens, cached = complete(server)
    disk = server.engine.assembly.disk
    assert cached == 0 and disk is not None
    disk.flush()
    blocks = num_tokens // 16
    found = samples(server)
    assert found["disk_blocks_total", "stored"] == found["disk_blocks_held", ""] == blocks
    assert found["disk_stored_bytes_total", ""] == blocks * disk.block_bytes
    assert found["disk_bytes", ""] == disk.folder.num_bytes and found["disk_limit_bytes", ""] == 64 * 2**20
    httpx.post(f"{server.url}/admin/cache/flush")
    _, from_disk = complete(server)
    _, from_memory = complete(server)
    found = samples(server)
    assert from_disk == (num_tokens - 1) // 16 * 16
    assert found["tier_hits_total", "disk"] == from_disk and found["tier_hits_total", "memory"] == from_memory
    assert found["disk_blocks_total", "loaded"] == from_disk // 16
    assert found["disk_loaded_bytes_total", ""] == from_disk // 16 * disk.block_bytes
    assert found["disk_loading_seconds_total", ""] > 0 and found["disk_storing_seconds_total", ""] > 0
    for outcome in ("dropped", "failed", "damaged", "evicted", "expired"):
        assert found["disk_blocks_total", outcome] == 0
    assert found["disk_queue_depth", ""] == found["disk_blocks_foreign", ""] == found["disk_blocks_pinned", ""] == 0
    told = httpx.get(f"{server.url}/admin/stats").json()["disk"]
    assert told["stats"]["num_loaded_tokens"] == from_disk and told["gauges"]["num_own_blocks"] == blocks


def test_without_a_tier_there_is_nothing_to_tell(live: LiveServer) -> None:
    assert samples(live) == {}
    assert "disk" not in httpx.get(f"{live.url}/admin/stats").json()
