"""Who is let in: keys over HTTP in both dialects, administrators, pages of other sites, and where one may listen."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from live_server import LiveServer, live_server
from raw_http import Ask, Exchange

from octavo.errors import ConfigError
from octavo.server.auth import check_bind, is_loopback
from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

KEYS = KeyRing([Key.of("a", "alice"), Key.of("b", "bob"), Key.of("r", "root", is_admin=True)], b"s" * 32)
ANTHROPIC = {"anthropic-version": "2023-06-01"}
BEARER = {"authorization": "Bearer a"}


@pytest.fixture(scope="module")
def locked(live: LiveServer) -> Iterator[LiveServer]:
    with live_server(live.engine, keys=KEYS) as server:
        yield server


def chat(server: LiveServer, headers: dict[str, str], content: str = "Hi") -> httpx.Response:
    body = {"model": server.model, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
    return httpx.post(f"{server.openai_url}/chat/completions", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer a"}, {"authorization": "bearer  a"}, {"x-api-key": "a"}], ids=str
)
def test_a_key_is_taken_from_either_header(locked: LiveServer, headers: dict[str, str]) -> None:
    assert chat(locked, headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic a"},
        {"authorization": "a"},
        {"x-api-key": ""},
        {"x-api-key": "A"},
        {"x-api-key": "caf\u00e9"},
    ],
    ids=str,
)
def test_without_a_known_key_nothing_is_served_in_either_dialect(locked: LiveServer, headers: dict[str, str]) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    for path in ("/v1/models", "/v1/chat/completions", "/openapi.json", "/metrics", "/admin/stats", "/nothing"):
        refused = httpx.get(f"{locked.url}{path}", headers=encoded)  # type: ignore[arg-type]
        assert refused.status_code == 401, path
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert "Bearer" in error["message"] and "wrong" not in error["message"]
        assert refused.headers["www-authenticate"] == "Bearer"
    refused = httpx.post(f"{locked.url}/v1/messages", headers=encoded, json={})  # type: ignore[arg-type]
    assert refused.status_code == 401
    assert refused.json()["type"] == "error" and refused.json()["error"]["type"] == "authentication_error"
    assert refused.json()["request_id"] == refused.headers["request-id"]


def test_supervisors_need_no_key(locked: LiveServer) -> None:
    for path in ("/health", "/ready", "/version"):
        assert httpx.get(f"{locked.url}{path}").status_code == 200


async def test_the_body_of_somebody_unknown_is_not_read(locked: LiveServer) -> None:
    """The refusal comes before the body has, so nobody can make the server hold one."""
    ask = Ask("/v1/chat/completions", {"model": "m", "messages": "x" * 1_000_000})
    exchange = await Exchange.begin(locked.url, ask, 400)
    status, headers = await exchange.head()
    assert status == 401
    assert b"invalid_api_key" in await exchange.content(headers)
    exchange.hang_up()


def test_metrics_and_admin_endpoints_need_an_admin_s_key(locked: LiveServer) -> None:
    for method, path in (("GET", "/metrics"), ("GET", "/admin/stats"), ("POST", "/admin/cache/flush")):
        assert httpx.request(method, f"{locked.url}{path}", headers={"x-api-key": "r"}).status_code == 200
        refused = httpx.request(method, f"{locked.url}{path}", headers={"x-api-key": "a"})
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "permission_error"
        refused = httpx.request(method, f"{locked.url}{path}", headers={"x-api-key": "a", **ANTHROPIC})
        assert refused.json()["type"] == "error" and refused.json()["error"]["type"] == "permission_error"


def test_metrics_can_be_everybody_s(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(public_metrics=True), keys=KEYS) as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        assert httpx.get(f"{server.url}/admin/stats").status_code == 401


def test_tenants_share_cached_blocks_with_themselves_alone(locked: LiveServer) -> None:
    def cached(key: str) -> int:
        reply = chat(locked, {"x-api-key": key}, "A prompt that is asked by several tenants, one after the other. " * 4)
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == 0


def test_without_keys_everybody_may_do_everything_on_loopback(live: LiveServer) -> None:
    assert httpx.get(f"{live.url}/admin/stats").status_code == 200
    assert httpx.get(f"{live.url}/metrics").status_code == 200


def test_without_keys_nobody_is_an_admin_where_others_can_ask(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(host="0.0.0.0", allow_anyone=True)) as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        assert httpx.post(f"{server.url}/admin/cache/flush").status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://evil.example:PORT", "http://["]
)
def test_a_page_of_another_site_can_do_nothing_without_keys(live: LiveServer, origin: str) -> None:
    """Not even by calling this machine by a name of its own: there ``Host`` and ``Origin`` agree."""
    port = live.url.rsplit(":", 1)[1]
    headers = {"origin": origin.replace("PORT", port), "host": f"evil.example:{port}"}
    refused = httpx.post(f"{live.url}/admin/cache/flush", headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_the_server_s_own_pages_and_those_allowed_may_ask(live: LiveServer) -> None:
    assert httpx.get(f"{live.url}/v1/models", headers={"origin": live.url}).status_code == 200
    allowed = "https://chat.example.com"
    assert "access-control-allow-origin" not in httpx.get(f"{live.url}/v1/models").headers
    with live_server(live.engine, ServerConfig(cors_origins=[allowed])) as server:
        reply = httpx.get(f"{server.url}/v1/models", headers={"origin": allowed})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, allowed)
        asked = {"origin": allowed, "access-control-request-method": "POST"}
        preflight = httpx.options(f"{server.url}/v1/messages", headers=asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, allowed)
        reply = httpx.get(f"{server.url}/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in reply.headers


def test_errors_can_be_read_by_the_pages_that_may_ask(live: LiveServer) -> None:
    allowed = "https://chat.example.com"
    with live_server(live.engine, ServerConfig(cors_origins=[allowed]), keys=KEYS) as server:
        refused = httpx.get(f"{server.url}/v1/models", headers={"origin": allowed})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, allowed)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.com", "::ffff:10.0.0.1"])
def test_without_keys_only_this_machine_is_served_unless_said_otherwise(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--api-key-file.*--allow-anyone"):
        check_bind(host, has_keys=False, allow_anyone=False)
    check_bind(host, has_keys=True, allow_anyone=False)
    check_bind(host, has_keys=False, allow_anyone=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)
    check_bind(host, has_keys=False, allow_anyone=False)


def test_no_key_stands_in_any_answer(locked: LiveServer) -> None:
    key = "octavo-somebodys-secret-key"
    for reply in (chat(locked, {"x-api-key": key}), chat(locked, {"authorization": f"Bearer {key}"})):
        assert key not in reply.text and key not in json.dumps(dict(reply.headers))
