"""Tenants: what one sends changes nothing that another is told, unless the server was told to let them share."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from held_engine import held
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, live_server

from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

TENANTS = ("alice", "bob")
TEXTS = ("Name a river.", "Name a river and say where it is.", "Name a hill.")
SYSTEM = "You are a helper of few words, and each of them is well chosen. " * 3


@contextmanager
def company(live: LiveServer, *groups: str) -> Iterator[LiveServer]:
    """On the engine of ``live``, with salts that no other test has."""
    names = (*TENANTS, "carol")
    ring = KeyRing([Key.of(name, name) for name in names], secrets.token_bytes(32), groups)
    with live_server(live.engine, ServerConfig(share_cache=groups), keys=ring, clock=lambda: 0.0) as served:
        yield served


def post(live: LiveServer, tenant: str, path: str, body: dict[str, Any]) -> Any:
    headers = {"authorization": f"Bearer {tenant}"}
    answer = httpx.post(f"{live.url}{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def chat(live: LiveServer, tenant: str, text: str) -> Any:
    asked = {"model": live.model, "messages": conversation(text), "max_tokens": 2, "temperature": 0}
    return post(live, tenant, "/v1/chat/completions", asked)


def message(live: LiveServer, tenant: str, text: str) -> Any:
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": text}]
    asked = {"model": live.model, "system": system, "messages": messages, "max_tokens": 2, "temperature": 0}
    return post(live, tenant, "/v1/messages", asked)


def explained(live: LiveServer, tenant: str, text: str) -> Any:
    request = {"model": live.model, "messages": conversation(text)}
    return post(live, tenant, "/v1/cache/explain", {"endpoint": "/v1/chat/completions", "request": request})


def cached(answer: Any) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


WAYS = {"chat": chat, "message": message, "explained": explained}
STEPS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.sampled_from(sorted(WAYS)), st.sampled_from(TEXTS)), min_size=2, max_size=8
)


def told(live: LiveServer, steps: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """All that each tenant is told, with its requests' ids and times replaced: these are nobody else's doing."""
    answers: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
    names: dict[str, str] = {}
    for tenant, way, text in steps:
        answer = WAYS[way](live, tenant, text)
        answer.pop("created", None)
        plain = json.dumps(answer)
        for name in re.findall("[0-9a-f]{32}", plain):
            plain = plain.replace(name, names.setdefault(name, f"request {len(answers[tenant])}"))
        answers[tenant].append(plain)
    for tenant in TENANTS:
        usage = httpx.get(f"{live.url}/v1/cache/usage", headers={"authorization": f"Bearer {tenant}"})
        answers[tenant].append(usage.text)
    return answers


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_each_tenant_is_told_exactly_what_it_is_told_alone(live: LiveServer, steps: list[tuple[str, str, str]]) -> None:
    with company(live) as server:
        together = told(server, steps)
    for tenant in TENANTS:
        with company(live) as server:
            alone = told(server, [step for step in steps if step[0] == tenant])
        assert together[tenant] == alone[tenant]


def test_nobody_waits_for_a_prefix_that_another_tenant_computes(live: LiveServer) -> None:
    with company(live) as server, ThreadPoolExecutor(4) as pool:
        service = server.app.state.octavo.service
        with held(server.engine):
            answers = {tenant: [pool.submit(chat, server, tenant, TEXTS[0]) for _ in range(2)] for tenant in TENANTS}
            while sum(len(list(service.history.of(tenant))) for tenant in TENANTS) < 4:
                pass
        found = {tenant: sorted(cached(each.result()) for each in both) for tenant, both in answers.items()}
    size = answers["alice"][0].result()["usage"]["prompt_tokens"]
    assert found == {"alice": [0, size - 1], "bob": [0, size - 1]}  # each waits for its own, and for that alone


@pytest.mark.parametrize("groups", [("alice,bob",), ("*",)])
def test_a_group_shares_its_prompts_and_their_entries_and_nothing_else(live: LiveServer, groups: tuple[str]) -> None:
    with company(live, *groups) as server:
        mine = chat(server, "alice", TEXTS[0])
        written = message(server, "alice", TEXTS[0])["usage"]["cache_creation_input_tokens"]
        assert cached(chat(server, "bob", TEXTS[0])) == mine["usage"]["prompt_tokens"] - 1
        assert message(server, "bob", TEXTS[1])["usage"]["cache_read_input_tokens"] == written > 0
        kept = {"model": server.model, "input": TEXTS[0], "max_output_tokens": 2}
        response = post(server, "alice", "/v1/responses", kept)["id"]
        beginning = {"model": server.model, "messages": conversation(TEXTS[0])[:1], "ttl": "60s"}
        name = post(server, "alice", "/v1/caches", beginning)["name"]
        with httpx.Client(base_url=server.url, headers={"authorization": "Bearer bob"}, timeout=60) as bob:
            assert bob.get(f"/v1/responses/{response}").status_code == 404
            assert bob.get(f"/v1/{name}").status_code == 404
            assert bob.post("/v1/cache/explain", json={"request_id": mine["id"]}).status_code == 404
            assert [each["requests"] for each in bob.get("/v1/cache/usage").json()["data"]] == [2]


def test_who_is_in_no_group_finds_nothing_of_it(live: LiveServer) -> None:
    with company(live, "alice,bob") as server:
        chat(server, "alice", TEXTS[0])
        assert cached(chat(server, "carol", TEXTS[0])) == 0
        chat(server, "carol", TEXTS[1])
        shared = cached(chat(server, "bob", TEXTS[1]))
        assert 0 < shared < cached(chat(server, "carol", TEXTS[1]))


def test_in_a_group_the_other_s_prompts_are_reused_and_not_told(live: LiveServer) -> None:
    with company(live, "alice,bob") as server:
        size = chat(server, "alice", TEXTS[0])["usage"]["prompt_tokens"]
        answer = explained(server, "bob", TEXTS[1])
        assert 0 < answer["hit_tokens"] < size - 1
        assert (answer["first_difference"], answer["causes"][0]["type"]) == (None, "not_seen")
