"""``diagnostics``: why a prompt could not go on with the one of an earlier message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import Message
from caching_client import Caches, Tenant, caches
from live_server import LiveServer

RULES, ASKED, AGAIN = "You are a librarian of few words.", "Which book is the oldest?", "And the newest?"
TOOL: Any = {"name": "books", "description": "Find books.", "input_schema": {"type": "object"}}
FIRST: dict[str, Any] = {"system": RULES, "tools": [TOOL], "messages": [{"role": "user", "content": ASKED}]}
NEXT = [*FIRST["messages"], {"role": "assistant", "content": "The brown one."}, {"role": "user", "content": AGAIN}]


@pytest.fixture(scope="module")
def served(live: LiveServer) -> Iterator[Caches]:
    with caches(live, b"diagnostics", model_names=["one", "another"]) as server:
        yield server


@pytest.fixture
def tenant(served: Caches) -> Iterator[Tenant]:
    with served.tenant() as one:
        yield one


def after(tenant: Tenant, before: Message, **fields: Any) -> dict[str, Any] | None:
    """``cache_miss_reason`` of a message that names an earlier one; ``None`` if there are no diagnostics."""
    message = tenant.ask(**{**FIRST, **fields}, diagnostics={"previous_message_id": before.id})
    return None if message.diagnostics is None else message.diagnostics.model_dump()["cache_miss_reason"]


def test_a_prompt_that_goes_on_has_no_diagnostics_nor_has_one_that_asks_for_none(tenant: Tenant) -> None:
    first = tenant.ask(**FIRST)
    assert first.diagnostics is None and "diagnostics" in first.model_fields_set
    assert tenant.ask(**FIRST, diagnostics={"previous_message_id": None}).diagnostics is None
    assert after(tenant, first) is None
    assert after(tenant, first, messages=NEXT) is None


def test_what_became_different_is_named_with_the_tokens_that_it_cost(tenant: Tenant) -> None:
    first = tenant.ask(**{**FIRST, "messages": NEXT})
    tokens = tenant.tokens(tenant.text({**FIRST, "messages": NEXT}))
    other_tool = {**TOOL, "description": "Find maps."}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("model_changed", {"model": "another"}),
        ("tools_changed", {"tools": [other_tool]}),
        ("system_changed", {"system": "You are a sailor."}),
        ("messages_changed", {"messages": [{"role": "user", "content": "Which map?"}, *NEXT[1:]]}),
        ("messages_changed", {"messages": [NEXT[0], {"role": "assistant", "content": "None."}, NEXT[2]]}),
    ]
    for kind, change in changes:
        fields = {**FIRST, "messages": NEXT, **change}
        now = tenant.tokens(tenant.text(fields))
        shared = next((at for at, (one, two) in enumerate(zip(tokens, now, strict=False)) if one != two), len(tokens))
        missed = max(0, min(len(tokens), len(now) - 1) - shared)
        assert after(tenant, first, **fields) == {"type": kind, "cache_missed_input_tokens": missed}


def test_what_is_not_known_is_not_found_and_another_tenant_s_message_is_not_known(served: Caches) -> None:
    with served.tenant() as alice, served.tenant() as bob:
        told = alice.ask(**FIRST)
        assert after(bob, told) == {"type": "previous_message_not_found"}
        assert after(bob, told.model_copy(update={"id": "msg_0"})) == {"type": "previous_message_not_found"}


def test_a_stream_begins_with_its_diagnostics(tenant: Tenant) -> None:
    first = tenant.ask(**FIRST)
    asked: Any = {**FIRST, "system": "You are a sailor.", "diagnostics": {"previous_message_id": first.id}}
    with tenant.sdk.messages.stream(model="one", max_tokens=1, **asked) as stream:
        streamed = stream.get_final_message()
    whole = tenant.ask(**asked)
    assert streamed.diagnostics is not None and streamed.diagnostics == whole.diagnostics
