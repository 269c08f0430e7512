"""What is wrong with a request for a chat completion is answered 400, with the field's name as the client wrote it."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from live_server import LiveServer

HELLO = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"type": "function", "function": {"name": "g"}}
HALF = "\ud800"
NOT_A_NUMBER = float("nan")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}


def said(**message: Any) -> list[Any]:
    return [{"role": "user", **message}]


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": fields}


UNSUPPORTED = {
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "moderation": {"model": "m"},
    "functions": [FUNCTION],
    "function_call": "auto",
    "prompt_logprobs": 1,
}
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, name) for name, value in UNSUPPORTED.items()),
    ({"unknown": 1}, "unknown"),
    ({"guided_json": {}}, "guided_json"),
    ({"model": 3}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [3]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 3, "content": "x"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [*HELLO, {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": []}]}, "messages[1].content"),
    ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": said(content=None)}, "messages[0].content"),
    ({"messages": said(content=3)}, "messages[0].content"),
    ({"messages": said(content=[3])}, "messages[0].content[0]"),
    ({"messages": said(content=HALF)}, "messages[0].content"),
    ({"messages": said(content="x", extra=1)}, "messages[0].extra"),
    ({"messages": said(content="x", cache_control={"type": "always"})}, "messages[0].cache_control.type"),
    *(
        ({"messages": said(content=[{"type": "text", "text": "x"}, {"type": kind}])}, "messages[0].content[1].type")
        for kind in ("image_url", "input_audio", "file", "refusal", "thinking")
    ),
    ({"messages": said(content=[{"type": "text"}])}, "messages[0].content[0].text"),
    ({"messages": said(content=[{"type": "text", "text": "x", "a": 1}])}, "messages[0].content[0].a"),
    (
        {"messages": said(content=[{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "no"}}])},
        "messages[0].content[0].prompt_cache_breakpoint.mode",
    ),
    ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call"),
    ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
    (
        {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL]}, *HELLO]},
        "messages[1].tool_calls[0].function.arguments",
    ),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_completion_tokens": 2**70}, "max_completion_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": NOT_A_NUMBER}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": list("abcde")}, "stop"),
    ({"stop": 3}, "stop"),
    ({"stop": HALF}, "stop"),
    ({"seed": 2**65}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"presence_penalty": -2.5}, "presence_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": schema(schema={})}, "response_format.json_schema.name"),
    ({"response_format": schema(name="a b", schema={})}, "response_format.json_schema.name"),
    ({"response_format": schema(name="a")}, "response_format.json_schema.schema"),
    ({"response_format": schema(name="a", schema={"type": "nope"})}, "response_format.json_schema.schema"),
    (
        {"response_format": schema(name="a", schema={"type": "nope"}), "tools": TOOLS},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "("}, "tools": TOOLS}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": {"type": "nope"}}}, "structured_outputs.json"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": TOOLS * 2}, "tools[1].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters",
    ),
    ({"tools": TOOLS, "ignore_eos": True}, "ignore_eos"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}, "tools": TOOLS}, "tool_choice.type"),
    ({"tool_choice": NAMED, "tools": TOOLS}, "tool_choice"),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, "tools": TOOLS},
        "tool_choice",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tools": TOOLS},
        "tool_choice.allowed_tools.tools",
    ),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"every": 1}}, "stream_options.every"),
    ({"modalities": ["text", "audio"]}, "modalities[1]"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"verbosity": "mute"}, "verbosity"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"safety_identifier": "x" * 65}, "safety_identifier"),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"prompt_cache_options": {"mode": "off"}}, "prompt_cache_options.mode"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"min_tokens": 5, "max_completion_tokens": 4}, "min_tokens"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
]


def post(live: LiveServer, body: dict[str, Any]) -> httpx.Response:
    import json

    content = json.dumps({"model": live.model, "messages": HELLO, "max_completion_tokens": 2, **body})
    headers = {"content-type": "application/json"}
    return httpx.post(f"{live.openai_url}/chat/completions", content=content, headers=headers, timeout=60)


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{param}-{place}" for place, (_, param) in enumerate(WRONG)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_refused_by_its_name(
    live: LiveServer, fields: dict[str, Any], param: str, stream: bool
) -> None:
    if "max_tokens" in fields and "max_completion_tokens" not in fields:
        fields = {"max_completion_tokens": None, **fields}
    response = post(live, {"stream": stream, **fields} if stream and "stream_options" not in fields else fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert set(error) == {"message", "type", "param", "code"} and error["message"]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_this_server_does_not_do_has_a_code_of_its_own(live: LiveServer, name: str) -> None:
    assert post(live, {name: UNSUPPORTED[name]}).json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_refused_with_both_sizes_before_the_first_byte(ask: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask([{"role": "user", "content": "long " * 3000}], stream=stream, max_completion_tokens=None)
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "messages"
    assert "2,048" in refused.value.message and "3,0" in refused.value.message


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_too_long_an_answer_is_refused_in_the_clients_own_words(ask: Any, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(HELLO, **{"max_completion_tokens": None, name: 5000})
    assert refused.value.code == "context_length_exceeded" and refused.value.param == name
    assert "5,000" in refused.value.message and "2,048" in refused.value.message
    assert refused.value.message.count(name) == 1


def test_another_model_is_not_found(live: LiveServer) -> None:
    response = post(live, {"model": "another"})
    assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"
