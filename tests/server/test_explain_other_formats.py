"""What the disk has of a prompt in a format that this server cannot use is said, to whoever it belongs to."""

from __future__ import annotations

from pathlib import Path

import httpx
from live_server import LiveServer, served_model

PROMPT = "A block holds the keys and values of sixteen tokens. " * 20


def complete(server: LiveServer) -> int:
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 1}
    usage = httpx.post(f"{server.openai_url}/completions", json=body, timeout=60).json()["usage"]
    return int(usage["prompt_tokens"])


def causes(server: LiveServer) -> dict[str, tuple[int, int, str]]:
    question = {"endpoint": "/v1/completions", "request": {"model": server.model, "prompt": PROMPT, "max_tokens": 1}}
    told = httpx.post(f"{server.openai_url}/cache/explain", json=question, timeout=60).json()
    return {cause["type"]: (*cause["tokens"], cause["message"]) for cause in told["causes"]}


def test_what_another_format_holds_is_named_until_it_is_of_no_use(smollm2_gguf: Path, tmp_path: Path) -> None:
    with served_model(smollm2_gguf, kv_disk=tmp_path / "kv", kv_dtype="int8") as server:
        num_tokens = complete(server)
    with served_model(smollm2_gguf, kv_disk=tmp_path / "kv") as server:
        before = causes(server)
        start, end, message = before["other_format"]
        assert (start, end) == (0, num_tokens // 16 * 16)
        assert "int8" in message and "cannot use" in message
        assert before["not_seen"][:2] == (0, num_tokens - 1), "the share of each cause is as ever"
        complete(server)
        assert "other_format" not in causes(server)
