"""A named cache is durable when its creation is answered, and its tokens outlive the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from live_server import LiveServer, served_model

TEXT = "A block holds the keys and values of sixteen tokens, for all layers of a model. " * 20


def post(server: LiveServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = httpx.post(f"{server.openai_url}/{path}", json=body, timeout=60).raise_for_status().json()
    return found


def test_a_named_cache_is_durable_when_it_is_there(smollm2_gguf: Path, tmp_path: Path) -> None:
    with served_model(smollm2_gguf, kv_disk=tmp_path / "kv", kv_disk_queue=1) as server:
        disk = server.engine.assembly.disk
        assert disk is not None
        cache = post(server, "caches", {"model": server.model, "prompt": TEXT, "ttl": "600s"})
        num_tokens = cache["usage"]["total_tokens"]
        assert len(disk.folder) == num_tokens // 16, "whatever a queue of one block dropped was offered again"
    with served_model(smollm2_gguf, kv_disk=tmp_path / "kv") as server:
        usage = post(server, "completions", {"model": server.model, "prompt": TEXT + "And?", "max_tokens": 1})["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= num_tokens // 16 * 16 - 16
