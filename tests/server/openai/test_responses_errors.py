"""What is malformed is refused with the field's name, nothing breaks the server, and the next request is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import LiveServer

from octavo.server.openai.responses_schema import ResponseBody

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "f"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.fixture(scope="module")
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


def send(http: httpx.Client, live: LiveServer, body: Any, path: str = "/v1/responses") -> httpx.Response:
    """``body`` with what a request needs, as Python writes it: ``NaN`` and halves of surrogate pairs included."""
    if isinstance(body, dict):
        body = {"model": live.model, "input": "Hi", "max_output_tokens": 1, "store": False, **body}
    return http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": "\ud800"}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
    ({"input": [{**USER, "colour": "red"}]}, "input[0].colour"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "never", "output": "x"}]}, "input[1].call_id"),
    ({"input": [USER, {"type": "function_call_output", "output": "x"}]}, "input[1].call_id"),
    ({"input": [USER, {**CALL, "arguments": "{"}]}, "input[1].arguments"),
    ({"input": [USER, {**CALL, "arguments": "[]"}]}, "input[1].arguments"),
    ({"input": [USER, {**CALL, "arguments": {}}]}, "input[1].arguments"),
    ({"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[1].encrypted_content"),
    ({"instructions": 5}, "instructions"),
    ({"instructions": "\udfff"}, "input"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"store": 1}, "store"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_output_tokens": 10**30}, "max_output_tokens"),
    ({"max_output_tokens": 3000}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": float("inf")}, "top_p"),
    ({"text": "plain"}, "text"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n n", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": float("nan")}}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}, "tools": [TOOL]},
        "text.format.schema",
    ),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search_preview"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
    ({"tools": [{**TOOL, "parameters": {"x": float("inf")}}]}, "tools[0].parameters"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "web_search_preview"}, "tools": [TOOL]}, "tool_choice.type"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"reasoning": {"effort": "immense"}}, "reasoning.effort"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"include": "message.output_text.logprobs"}, "include"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    ({"metadata": {"k": 5}}, "metadata.k"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"user": 5}, "user"),
    ({"safety_identifier": "x" * 129}, "safety_identifier"),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key"),
    ({"prompt_cache_retention": "for ever"}, "prompt_cache_retention"),
    ({"prompt_cache_options": {"prewarm": "yes"}}, "prompt_cache_options.prewarm"),
    ({"prompt_cache_options": {"comparison_response_id": ""}}, "prompt_cache_options.comparison_response_id"),
    ({"moderation": {}}, "moderation"),
    ({"messages": [USER]}, "messages"),
]


@pytest.mark.parametrize(("body", "param"), MALFORMED, ids=[f"{p}-{i}" for i, (_, p) in enumerate(MALFORMED)])
def test_a_malformed_field_is_refused_by_its_name(
    http: httpx.Client, live: LiveServer, body: dict[str, Any], param: str
) -> None:
    response = send(http, live, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert "max_tokens" not in error["message"]


@pytest.mark.parametrize("body", [None, [], "text", 5, b"{", b"", b"\xff", b'{"model": "\\ud800"', b"[" * 100_000])
def test_what_is_no_object_is_refused(http: httpx.Client, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = http.post("/v1/responses", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_with_both_sizes_before_anything_is_sent(
    http: httpx.Client, live: LiveServer, stream: bool
) -> None:
    response = send(http, live, {"input": "word " * 3000, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "2,048" in error["message"]
    counted = send(http, live, {}, "/v1/responses/input_tokens")
    assert counted.json()["error"]["param"] == "max_output_tokens"  # no parameter of this endpoint


def test_a_model_that_is_not_served_is_not_found(http: httpx.Client, live: LiveServer) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        response = http.post(path, json={"model": "other", "input": "Hi"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("query", "param"),
    [("?stream=true", "stream"), ("?starting_after=1", "starting_after"), ("/input_items?limit=0", "limit"),
     ("/input_items?limit=x", "limit"), ("/input_items?order=up", "order"), ("/input_items?before=x", "before")],
)  # fmt: skip
def test_a_malformed_query_is_refused_by_its_name(http: httpx.Client, query: str, param: str) -> None:
    response = http.get(f"/v1/responses/resp_x{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TEXTS = st.text(max_size=20) | st.sampled_from(["\ud800", "\0", "<|im_end|>", "{{ x }}", "<tool_call>"])
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"]), "text": TEXTS}
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "item_reference", "x"]
        ),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]),
        "content": TEXTS | st.lists(PARTS, max_size=2) | JSONS,
        "id": TEXTS,
        "call_id": st.sampled_from(["a", "b", ""]),
        "name": TEXTS,
        "arguments": st.sampled_from(["{}", "[]", "{", '{"a": 1e999}', ""]) | TEXTS,
        "output": TEXTS | st.lists(PARTS, max_size=2),
        "summary": st.just([]) | JSONS,
    },
)
TOOLS = st.fixed_dictionaries(
    {"type": st.just("function"), "name": st.sampled_from(["f", "g", "auto"]) | TEXTS},
    optional={"parameters": st.dictionaries(st.sampled_from(["type", "properties", "enum", "not", "$ref"]), JSONS)},
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(ResponseBody.model_fields, JSONS),
    "input": TEXTS | st.lists(ITEMS, max_size=4),
    "instructions": TEXTS,
    "tools": st.lists(TOOLS, max_size=3),
    "tool_choice": st.sampled_from(["auto", "none", "required"])
    | st.fixed_dictionaries({"type": st.just("function"), "name": st.sampled_from(["f", "g", "auto"])}),
    "stream": st.booleans(),
    "temperature": st.floats(0, 2) | JSONS,
}
BODIES = st.fixed_dictionaries(
    {"input": FIELDS["input"]},
    optional={name: field for name, field in FIELDS.items() if name not in ("model", "input")},
)
FEW_FIELDS = st.lists(st.sampled_from(sorted(FIELDS)), max_size=4).flatmap(
    lambda names: st.fixed_dictionaries({"input": FIELDS["input"], **{name: FIELDS[name] for name in names}})
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(FEW_FIELDS | BODIES)
def test_no_body_breaks_the_server(http: httpx.Client, live: LiveServer, body: dict[str, Any]) -> None:
    body.setdefault("model", live.model)
    response = send(http, live, {**body, "max_output_tokens": 2})
    if response.status_code == 200:
        assert "response.failed" not in response.text
    else:
        assert 400 <= response.status_code < 500, response.text
        assert response.json()["error"]["message"]


def test_and_the_next_request_is_served(http: httpx.Client, live: LiveServer) -> None:
    assert send(http, live, {}).status_code == 200
    live.until_idle()
