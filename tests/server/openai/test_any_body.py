"""Whatever a client sends: an answer or a 4xx in the API's shape, never a failure, and the next request is served."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import LiveServer
from pydantic import BaseModel

from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.completions_schema import CompletionRequest

MOST_TOKENS = 3

text = st.text(st.characters(codec=None, categories=None), max_size=8)  # half surrogate pairs too
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.just(10**400) | st.just("text")
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)


def mostly(likely: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda dice: st.sampled_from(likely) if dice else anything)


parts = st.fixed_dictionaries(
    {"type": mostly(["text", "refusal", "image_url"])},
    optional={"text": text, "refusal": text, "cache_control": mostly([{"type": "ephemeral"}])},
)
calls = st.fixed_dictionaries(
    {"id": text, "type": st.just("function")},
    optional={"function": st.fixed_dictionaries({"name": text, "arguments": mostly(["{}", '{"a": 1}', "{"])})},
)
messages = st.fixed_dictionaries(
    {"role": mostly(["system", "user", "assistant", "tool", "developer"])},
    optional={
        "content": text | st.lists(parts, max_size=3),
        "tool_calls": st.lists(calls, max_size=2),
        "tool_call_id": text,
        "refusal": text,
        "name": text,
    },
)
schemas = st.fixed_dictionaries(
    {"type": mostly(["object", "string", "array"])},
    optional={
        "properties": st.dictionaries(text, st.fixed_dictionaries({"type": mostly(["string", "integer"])}), max_size=2),
        "enum": st.lists(scalars, max_size=3),
        "$ref": mostly(["#", "#/$defs/a"]),
        "pattern": mostly(["a+", "("]),
    },
)
tools = st.fixed_dictionaries(
    {"type": mostly(["function", "custom"])},
    optional={
        "function": st.fixed_dictionaries(
            {"name": mostly(["f", "g h"])}, optional={"parameters": schemas | anything, "strict": st.booleans()}
        )
    },
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(messages, min_size=1, max_size=3),
    "tools": st.lists(tools, max_size=2),
    "tool_choice": mostly(["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]),
    "response_format": st.fixed_dictionaries(
        {"type": mostly(["text", "json_object", "json_schema"])},
        optional={"json_schema": st.fixed_dictionaries({"name": st.just("a"), "schema": schemas | anything})},
    ),
    "structured_outputs": st.dictionaries(
        st.sampled_from(["json", "regex", "choice", "grammar", "json_object"]), schemas | anything, max_size=1
    ),
    "prompt": text | st.lists(text, max_size=3) | st.lists(st.integers(-1, 50_000), max_size=3) | anything,
    "stop": text | st.lists(text, max_size=3),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "seed": st.integers(),
    "temperature": st.floats(0, 2),
    "logprobs": st.booleans() | st.integers(0, 3),
    "logit_bias": st.dictionaries(st.integers(0, 60_000).map(str), st.floats(-100, 100), max_size=2),
    "chat_template_kwargs": st.dictionaries(text, anything, max_size=2),
}


def bodies(model: type[BaseModel], needed: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of which most fields would do on their own."""
    known = {name: FIELDS[name] | anything if name in FIELDS else anything for name in model.model_fields}
    likely = st.fixed_dictionaries(
        {
            needed: FIELDS[needed]
            if needed == "prompt"
            else st.just([{"role": "user", "content": "x"}]) | FIELDS[needed]
        },
        optional={name: FIELDS[name] for name in FIELDS if name in model.model_fields and name != needed},
    )
    odd = st.dictionaries(st.sampled_from(sorted(known)) | text, st.none(), max_size=1).flatmap(
        lambda names: st.fixed_dictionaries({name: known.get(name, anything) for name in names})
    )
    return st.tuples(likely, odd).map(lambda both: {**both[0], **both[1]})


BODIES = {
    "chat/completions": bodies(ChatCompletionRequest, "messages"),
    "completions": bodies(CompletionRequest, "prompt"),
}


@pytest.mark.parametrize("path", BODIES)
def test_any_body_is_answered_or_refused_and_the_next_is_served(live: LiveServer, path: str) -> None:
    with httpx.Client(base_url=live.openai_url, headers={"content-type": "application/json"}, timeout=60) as client:

        @settings(max_examples=150, database=None)
        @given(BODIES[path])
        def check(body: dict[str, Any]) -> None:
            limit = {"model": live.model, "max_tokens": MOST_TOKENS}
            response = client.post(f"/{path}", content=json.dumps({**body, **limit}))
            assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
            if response.status_code != 200:
                error = response.json()["error"]
                assert error["message"] and set(error) == {"message", "type", "param", "code"}
            elif body.get("stream") is True:
                assert response.text.endswith("data: [DONE]\n\n") or '{"error":' in response.text
            else:
                assert response.json()["choices"]

        check()
        body = {"model": live.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        assert client.post("/chat/completions", json=body).status_code == 200
    live.until_idle()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b'"a"', b"null", b"\xff", b"[" * 100_000, b"1" * 5000])
@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_json_object_is_refused(live: LiveServer, path: str, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{live.openai_url}/{path}", content=content, headers=headers, timeout=60)
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
