"""Bad requests: the API's own shape, the field's name, and the next request is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, served_model

from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.config import ServerConfig

Post = Callable[..., httpx.Response]
MARKER = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {}}


def user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


def said(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": list(blocks)}]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": 3}, "model"),
    ({"model": None}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 0, "stream": True}, "stream"),
    (
        {"max_tokens": 0, "tools": [{"name": "a", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        "tool_choice",
    ),
    (
        {"max_tokens": 0, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config.format",
    ),
    ({"max_tokens": 0, "output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": "half \ud800"}]}, "messages[0].content"),
    ({"messages": user("x")}, "messages[0].content[0]"),
    ({"messages": user({"text": "x"})}, "messages[0].content[0]"),
    ({"messages": user({"type": "text"})}, "messages[0].content[0].text"),
    ({"messages": user({"type": "text", "text": ""})}, "messages[0].content[0].text"),
    ({"messages": user({"type": "text", "text": "", "cache_control": MARKER})}, "messages[0].content[0].text"),
    ({"messages": user({"type": "text", "text": "x", "more": 1})}, "messages[0].content[0].more"),
    (
        {"messages": user({"type": "text", "text": "x", "cache_control": {"type": "x"}})},
        "content[0].cache_control.type",
    ),
    ({"messages": user({"type": "text", "text": "x"}, {"type": "image", "source": {}})}, "messages[0].content[1]"),
    ({"messages": user({"type": "server_tool_use"})}, "messages[0].content[0]"),
    ({"messages": user({"type": "container_upload"})}, "messages[0].content[0]"),
    ({"messages": user({"type": "document", "source": {"type": "base64"}})}, "messages[0].content[0].source"),
    ({"messages": user({"type": "document", "source": {"type": "url"}})}, "messages[0].content[0].source"),
    ({"messages": user({"type": "document"})}, "messages[0].content[0].source"),
    (
        {"messages": user({"type": "search_result", "source": "s", "title": "t", "content": "x"})},
        "messages[0].content[0].content",
    ),
    (
        {
            "messages": user(
                {"type": "search_result", "source": "s", "title": "t", "content": [], "citations": {"enabled": True}}
            )
        },
        "messages[0].content[0].citations.enabled",
    ),
    (
        {
            "messages": user(
                {
                    "type": "document",
                    "source": {"type": "content", "content": [{"type": "text", "text": "x", "cache_control": MARKER}]},
                }
            )
        },
        "messages[0].content[0].source.content[0].cache_control",
    ),
    (
        {
            "messages": user(
                {
                    "type": "search_result",
                    "source": "s",
                    "title": "t",
                    "content": [{"type": "text", "text": "x", "cache_control": MARKER}],
                }
            )
        },
        "messages[0].content[0].content[0].cache_control",
    ),
    ({"messages": said({"type": "thinking"}, {"type": "text", "text": "x"})}, "messages[1].content[0].thinking"),
    (
        {"messages": said({"type": "thinking", "thinking": "x", "cache_control": MARKER})},
        "messages[1].content[0].cache_control",
    ),
    ({"messages": said({"type": "tool_use", "id": "a", "name": "f", "input": "x"})}, "messages[1].content[0].input"),
    ({"messages": said({"type": "tool_use", "name": "f", "input": {}})}, "messages[1].content[0].id"),
    (
        {"messages": said({"type": "tool_use", "id": "a", "name": "f", "input": nested(80)})},
        "messages[1].content[0].input",
    ),
    ({"messages": user({"type": "tool_result", "tool_use_id": "a"})}, "messages[0].content[0].tool_use_id"),
    (
        {"messages": user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]})},
        "messages[0].content[0].content[0]",
    ),
    ({"system": 3}, "system"),
    ({"system": [{"type": "text", "text": ""}]}, "system[0].text"),
    ({"system": [{"type": "document"}]}, "system[0].type"),
    ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "9m"}}]}, "ttl"),
    ({"temperature": 1.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 0.5}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"stop_sequences": ["\ud800"]}, "stop_sequences[0]"),
    ({"stream": "yes"}, "stream"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
    ({"tools": [{"name": "a b", "input_schema": SCHEMA}]}, "tools[0].name"),
    ({"tools": [{"name": "a", "input_schema": SCHEMA}] * 2}, "tools[1].name"),
    ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "tools[0].input_schema.type"),
    ({"tools": [{"name": "a", "input_schema": nested(80)}]}, "tools[0].input_schema"),
    (
        {"tools": [{"name": "a", "input_schema": {**SCHEMA, "properties": {"b": {"type": "nope"}}}}]},
        "tools[0].input_schema",
    ),
    ({"tools": [{"name": "a", "input_schema": {**SCHEMA, "not": {}}, "strict": True}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
    ({"tools": [{"type": "computer_20250124", "name": "computer", "display_width_px": 1}]}, "computer_20250124"),
    ({"tools": [{"name": "a", "input_schema": SCHEMA, "defer_loading": True}]}, "tools[0].defer_loading"),
    (
        {"tools": [{"name": "a", "input_schema": SCHEMA, "allowed_callers": ["code_execution_20250825"]}]},
        "tools[0].allowed_callers",
    ),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "must"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "none", "disable_parallel_tool_use": True}}, "tool_choice.disable_parallel_tool_use"),
    ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "between_tools"}}, "thinking"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nope"}}}},
        "output_config.format.schema",
    ),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"x-guidance": {}}}}},
        "output_config.format.schema",
    ),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
    ({"output_format": {"type": "json_schema", "schema": {"type": "nope"}}}, "output_format.schema"),
    (
        {
            "output_format": {"type": "json_schema", "schema": SCHEMA},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
        "output_format",
    ),
    (
        {
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "messages": said({"type": "text", "text": "{"}),
        },
        "output_config.format",
    ),
    ({"metadata": {"user": "x"}}, "metadata.user"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"speed": "fast"}, "speed"),
    ({"inference_geo": "us"}, "inference_geo"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
    ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management.edits[0].keep"),
    ({"diagnostics": {"previous_message_id": 3}}, "diagnostics.previous_message_id"),
    ({"cache_control": {"type": "ephemeral", "ttl": 5}}, "cache_control.ttl"),
    ({"betas": ["x"]}, "betas"),
    ({"thread": {}}, "thread"),
]


@pytest.mark.parametrize("fields, named", FIELDS, ids=[f"{place}-{named}" for place, (_, named) in enumerate(FIELDS)])
def test_a_bad_value_is_refused_by_name(fields: dict[str, Any], named: str, post: Post) -> None:
    response = post(**fields)
    body = response.json()
    assert response.status_code == 400, body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert named in body["error"]["message"]
    assert "structured_outputs" not in body["error"]["message"] and "function" not in body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"]


def test_after_every_refusal_the_next_request_is_served(post: Post, live: LiveServer) -> None:
    assert post(system="x" * 100_000).status_code == 400
    assert post([]).status_code == post("Hi").status_code == 400
    broken = httpx.post(f"{live.url}/v1/messages", content=b'{"model": ', headers={"content-type": "application/json"})
    assert broken.status_code == 400 and broken.json()["error"]["type"] == "invalid_request_error"
    deep = b'{"messages":' + b"[" * 100_000
    headers = {"content-type": "application/json"}
    assert httpx.post(f"{live.url}/v1/messages", content=deep, headers=headers).status_code == 400
    assert post(path="/v1/messages/count_tokens").json()["error"]["message"].startswith("max_tokens")
    assert post().status_code == 200
    live.until_idle()


def test_too_many_tokens_are_refused_with_both_sizes_before_the_first_byte(client: Anthropic, live: LiveServer) -> None:
    hi: Any = [{"role": "user", "content": "Hi"}]
    long: Any = [{"role": "user", "content": "one two " * 3000}]
    limit = live.engine.summary.max_model_len
    prompt = client.messages.count_tokens(model=live.model, messages=hi).input_tokens
    with pytest.raises(anthropic.BadRequestError, match=rf"{prompt} \+ {limit} > {limit}"):
        client.messages.create(model=live.model, max_tokens=limit, messages=hi, stream=True)
    with pytest.raises(anthropic.BadRequestError, match=rf"prompt is too long: \d+ tokens > {limit}"):
        client.messages.create(model=live.model, max_tokens=1, messages=long, stream=True)


def test_an_unknown_model_is_not_found(client: Anthropic) -> None:
    hi: Any = [{"role": "user", "content": "Hi"}]
    for send in (client.messages.count_tokens, lambda **fields: client.messages.create(max_tokens=1, **fields)):
        with pytest.raises(anthropic.NotFoundError) as missing:
            send(model="another", messages=hi)
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        assert missing.value.request_id and missing.value.request_id == missing.value.body["request_id"]  # type: ignore[index]


def test_a_stream_that_cannot_go_on_ends_with_an_error_event(smollm2_gguf: Path) -> None:
    with served_model(smollm2_gguf, ServerConfig(timeout=0.2)) as server:
        with Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
            fields: Any = {
                "model": server.model,
                "max_tokens": 1500,
                "messages": [{"role": "user", "content": "Count."}],
            }
            pattern = {"type": "array", "items": {"type": "integer"}, "minItems": 700}
            schema = {"type": "object", "properties": {"n": pattern}, "required": ["n"], "additionalProperties": False}
            fields["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
            with pytest.raises(anthropic.APIStatusError, match="longer than this server allows") as failed:
                for _ in client.messages.create(**fields, stream=True):
                    pass
            assert failed.value.body["error"]["type"] == "timeout_error"  # type: ignore[index]
            with pytest.raises(anthropic.APIStatusError) as refused:
                client.messages.create(**fields)
            assert refused.value.status_code == 504
        server.until_idle()


_NAMES = sorted({field.alias or name for name, field in MessagesRequest.model_fields.items()})
_WORDS = st.sampled_from(["text", "user", "assistant", "tool_use", "tool_result", "a", "", "\ud800", "{", "\x00"])
_NUMBERS = st.integers(-2, 3) | st.just(10**40) | st.floats(allow_nan=False, allow_infinity=False)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _WORDS
_BLOCK_KEYS = ["type", "text", "role", "content", "id", "name", "input", "tool_use_id", "source", "data", "title", "x"]
_OTHER_KEYS = ["thinking", "signature", "input_schema", "cache_control", "ttl", "schema", "format", "properties"]
_KEYS = st.sampled_from([*_BLOCK_KEYS, *_OTHER_KEYS, "budget_tokens"])
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)
_BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "document", "search_result", "image"])},
    optional={
        "text": _WORDS,
        "id": _WORDS,
        "name": _WORDS,
        "input": _VALUES,
        "tool_use_id": _WORDS,
        "content": _VALUES,
        "thinking": _WORDS,
        "source": _VALUES,
        "cache_control": _VALUES,
    },
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": _WORDS | st.lists(_BLOCKS, max_size=3)}
    ),
    max_size=4,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from([*_NAMES, "x"]), _VALUES, max_size=4),
    st.none() | _MESSAGES,
    st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]),
)
def test_no_body_is_too_much_for_the_server(
    live: LiveServer, fields: dict[str, Any], messages: list[Any] | None, path: str
) -> None:
    body = {"model": live.model, "max_tokens": 1, **fields}
    if path.endswith("count_tokens"):
        body = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    if messages is not None:
        body["messages"] = messages
    content, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    response = httpx.post(f"{live.url}{path}", content=content, headers=headers, timeout=60)
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
