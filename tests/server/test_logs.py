"""One JSON line for each request, and nothing of prompts, answers or keys in any line."""

from __future__ import annotations

import io
import json
import logging
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server

from octavo.errors import ConfigError
from octavo.server import logs
from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

SECRET_PROMPT = "The password of the vault is xyzzy-plugh"
KEY = "octavo-a-key-that-nobody-may-read"


@pytest.fixture
def lines() -> Iterator[Any]:
    """Everything that is logged, as ``octavo serve`` would; the process's own logging is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("info", stream)

    def so_many(count: int) -> list[Any]:
        """These lines and no others; the last may come right after its answer."""
        end = time.monotonic() + 5
        while stream.getvalue().count("\n") < count and time.monotonic() < end:
            time.sleep(0.002)
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert len(found) == count, found
        return found

    try:
        yield so_many
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)


@pytest.fixture
def server(live: LiveServer) -> Iterator[LiveServer]:
    keys = KeyRing([Key.of(KEY, "alice")], b"s" * 32)
    with live_server(live.engine, ServerConfig(shutdown_timeout=1), keys=keys) as fresh:
        yield fresh


def chat(server: LiveServer, **fields: Any) -> httpx.Response:
    body = {"model": server.model, "messages": [{"role": "user", "content": SECRET_PROMPT}], "max_tokens": 3, **fields}
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{server.openai_url}/chat/completions", json=body, headers=headers, timeout=60)


def test_a_request_is_one_line_with_what_it_used_and_how_long_it_took(server: LiveServer, lines: Any) -> None:
    reply = chat(server, n=2, prompt_cache_key="mine")
    [line] = lines(1)
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    usage = reply.json()["usage"]
    expected = {
        "level": "info",
        "request_id": reply.headers["x-request-id"],
        "tenant": "alice",
        "endpoint": "/v1/chat/completions",
        "method": "POST",
        "status": 200,
        "model": server.model,
        "cache_key": "mine",
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "output_tokens": usage["completion_tokens"],
        "reasoning_tokens": 0,
        "finish_reasons": ["length", "length"],
    }
    assert {name: line[name] for name in expected} == expected
    assert 0 <= line["queue_s"] <= line["ttft_s"] <= line["duration_s"] < 60
    assert "error" not in line


def test_nothing_of_prompts_answers_or_keys_is_in_any_line(
    server: LiveServer, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of a request that is answered, refused, or that the server fails on with the prompt in its message."""
    said = chat(server, max_tokens=20).json()["choices"][0]["message"]["content"]
    chat(server, messages=[{"role": SECRET_PROMPT, "content": "Hi"}])
    chat(server, stop=[SECRET_PROMPT] * 9)
    httpx.get(f"{server.openai_url}/models", headers={"x-api-key": KEY + "x"})
    httpx.get(f"{server.openai_url}/models?key={KEY}", headers={"x-api-key": KEY})

    def broken(request: Any) -> Any:
        raise KeyError(SECRET_PROMPT)

    monkeypatch.setattr(server.app.state.octavo.service.preparation, "prepare", broken)
    assert chat(server).status_code == 500
    text = json.dumps(lines(7))
    for secret in ("xyzzy", "vault", KEY, said):
        assert secret not in text


def test_a_failure_of_ours_is_logged_with_its_request_s_id_and_its_trace(
    server: LiveServer, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: Any) -> Any:
        raise KeyError("what nobody may read")

    monkeypatch.setattr(server.app.state.octavo.service.preparation, "prepare", broken)
    reply = chat(server)
    assert reply.status_code == 500 and "nobody may read" not in reply.text
    failure, request = lines(2)
    assert failure["level"] == request["level"] == "error"
    assert failure["request_id"] == request["request_id"] == reply.headers["x-request-id"]
    assert "in broken" in failure["exception"] and "KeyError" in failure["exception"]
    assert (request["status"], request["error"]) == (500, "internal")


def test_a_refusal_says_which(server: LiveServer, lines: Any) -> None:
    chat(server, max_tokens=10**6)
    httpx.get(f"{server.openai_url}/models")
    overflow, unknown = lines(2)
    assert (overflow["status"], overflow["error"]) == (400, "context_length_exceeded")
    assert (unknown["status"], unknown["error"], "tenant" in unknown) == (401, "invalid_api_key", False)


def test_probes_are_told_of_at_debug_alone(server: LiveServer, lines: Any) -> None:
    for path in ("/health", "/ready", "/nothing"):
        httpx.get(f"{server.url}{path}", headers={"x-api-key": KEY})
    assert [line["endpoint"] for line in lines(1)] == ["/nothing"]


def test_an_endless_path_is_cut(server: LiveServer, lines: Any) -> None:
    httpx.get(f"{server.url}/{'x' * 5000}", headers={"x-api-key": KEY})
    [line] = lines(1)
    assert len(line["endpoint"]) == 200


def test_warnings_and_other_loggers_become_lines_too(lines: Any) -> None:
    warnings.warn("mind the gap", stacklevel=1)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").info("chatter")
    warned, other = lines(2)
    assert warned["logger"] == "py.warnings" and "mind the gap" in warned["event"]
    assert (other["logger"], other["level"]) == ("uvicorn.error", "warning")


def test_a_trace_has_no_messages_unless_debugging(lines: Any) -> None:
    def trace(formatter: logging.Formatter) -> str:
        try:
            try:
                raise ValueError("a prompt")
            except ValueError as error:
                raise RuntimeError("an answer") from error
        except RuntimeError as error:
            info = (type(error), error, error.__traceback__)
            record = logging.LogRecord("octavo.server", logging.ERROR, "", 0, "it failed", (), info)
            return str(json.loads(formatter.format(record))["exception"])

    quiet, loud = trace(logs.JsonLines()), trace(logs.JsonLines(shows_messages=True))
    assert "ValueError" in quiet and "RuntimeError" in quiet and "in trace" in quiet
    assert "a prompt" not in quiet.replace('raise ValueError("a prompt")', "") and "\nRuntimeError" in quiet
    assert "ValueError: a prompt" in loud and "RuntimeError: an answer" in loud


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="debug, info, warning, error"):
        logs.check_level("verbose")
