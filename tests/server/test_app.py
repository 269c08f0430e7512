"""What surrounds the dialects: addresses that are not there, health, administration, the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from live_server import LiveServer

from octavo import __version__

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("POST", "/v1/chat/completion", {}, 404),
        ("GET", "/health/", {}, 404),
        ("GET", "/docs", {}, 404),
        ("GET", "/v1/chat/completions", {}, 405),
        ("DELETE", "/v1/models", {}, 405),
        ("OPTIONS", "/v1/chat/completions", {}, 405),
        ("PUT", "/health", {}, 405),
        ("GET", "/v1/messages", {}, 405),
        ("GET", "/v1/messages/batches", {}, 404),
        ("GET", "/v1/files", ANTHROPIC, 404),
        ("PUT", "/v1/models", ANTHROPIC, 405),
    ],
)
def test_what_is_not_there_is_said_in_the_dialect(
    live: LiveServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    refused = httpx.request(method, f"{live.url}{path}", headers=headers)
    assert refused.status_code == status
    error = refused.json()["error"]
    assert repr(path) in error["message"]
    assert ("allow" in refused.headers) == (status == 405)
    if path.startswith("/v1/messages") or headers:
        assert refused.json()["type"] == "error"
        assert refused.json()["request_id"] == refused.headers["request-id"]
        assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    else:
        assert set(error) == {"message", "type", "param", "code"}


def test_a_path_is_not_quoted_at_length(live: LiveServer) -> None:
    assert len(httpx.get(f"{live.url}/{'x' * 5000}").json()["error"]["message"]) < 300


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "not UTF-8 (byte 0)"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"model": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"null", "must be a JSON object"),
        (b'"\\ud800"', "must be a JSON object"),
        (b'{"": 1}', "'' is not a parameter"),
        (b'{"\\ud800": 1}', "not valid Unicode: '\\ud800'"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_body_that_is_no_object_is_400_in_the_dialect_and_says_why(
    live: LiveServer, path: str, body: bytes, why: str
) -> None:
    refused = httpx.post(f"{live.url}{path}", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert why in refused.json()["error"]["message"]


def test_every_answer_has_an_id_of_its_own(live: LiveServer) -> None:
    replies = [httpx.get(f"{live.url}{path}") for path in ("/health", "/nothing", "/v1/models")]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == 3
    assert all(reply.headers["request-id"] == reply.headers["x-request-id"] for reply in replies)


def test_health_readiness_and_version(live: LiveServer) -> None:
    assert httpx.get(f"{live.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{live.url}/ready").json() == {"status": "ready"}
    assert httpx.get(f"{live.url}/version").json() == {"version": __version__}


def test_administrators_flush_the_cache_and_see_the_engine(live: LiveServer) -> None:
    body = {"model": live.model, "prompt": "To be or not to be, " * 20, "max_tokens": 1}
    httpx.post(f"{live.openai_url}/completions", json=body, timeout=60)
    live.until_idle()
    gauges = httpx.get(f"{live.url}/admin/stats").json()["gauges"]
    assert gauges["num_cached_blocks"] > 0 and gauges["kv_cache_usage"] == 0
    flushed = httpx.post(f"{live.url}/admin/cache/flush").json()
    assert flushed == {"flushed_blocks": gauges["num_cached_blocks"]}
    report: dict[str, Any] = httpx.get(f"{live.url}/admin/stats").json()
    assert report["gauges"]["num_cached_blocks"] == 0
    steps = report["stats"]["tokens_per_step"]
    assert steps["count"] == report["stats"]["num_steps"]
    assert steps["sum"] == report["stats"]["num_computed_tokens"]
    assert list(steps["not_above"].values()) == sorted(steps["not_above"].values())


def test_the_document_has_our_errors_and_none_of_fastapi_s(live: LiveServer) -> None:
    document = httpx.get(f"{live.url}/openapi.json").json()
    assert document["info"]["version"] == __version__
    text = json.dumps(document)
    assert '"422"' not in text and "HTTPValidationError" not in text
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "200" in operation["responses"], path
            assert operation.get("summary") and operation.get("description"), path
            if method == "post" and path.startswith("/v1/"):
                assert {"400", "401", "404", "413", "429", "503", "504"} <= set(operation["responses"]), path
                schema = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
                assert schema.endswith("AnthropicError" if path.startswith("/v1/messages") else "OpenAIError")
                assert "$ref" in operation["requestBody"]["content"]["application/json"]["schema"], path


def test_a_misspelt_field_is_named_before_the_one_that_is_missing_for_it(live: LiveServer) -> None:
    wrong = httpx.post(f"{live.openai_url}/chat/completions", json={"model": live.model, "mesages": []})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "mesages")
