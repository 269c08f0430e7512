"""``litellm`` as its users have it, by its providers for both APIs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from live_server import LiveServer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def litellm() -> ModuleType:
    """Importing it fetches a list of prices, unless told otherwise."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

    return litellm


@pytest.fixture(params=["openai", "anthropic"])
def asked(live: LiveServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments that every call has: a provider, and where it is found."""
    base = {"openai": live.openai_url, "anthropic": live.url}[request.param]
    return {
        "model": f"{request.param}/{live.model}",
        "api_base": base,
        "api_key": "none",
        "max_tokens": 12,
        "temperature": 0,
        "timeout": 60,
        "num_retries": 0,
    }


def test_a_chat_is_answered(litellm: ModuleType, asked: dict[str, Any]) -> None:
    answered = litellm.completion(messages=QUESTION, **asked)
    assert "Paris" in answered.choices[0].message.content
    assert 0 < answered.usage.completion_tokens <= 12 < answered.usage.prompt_tokens


def test_a_streamed_chat_says_what_an_unstreamed_one_says(litellm: ModuleType, asked: dict[str, Any]) -> None:
    whole = litellm.completion(messages=QUESTION, **asked)
    chunks = list(litellm.completion(messages=QUESTION, stream=True, **asked))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_asynchronous_chats_streamed_and_not(litellm: ModuleType, asked: dict[str, Any]) -> None:
    whole = await litellm.acompletion(messages=QUESTION, **asked)
    streamed = ""
    async for chunk in await litellm.acompletion(messages=QUESTION, stream=True, **asked):
        streamed += chunk.choices[0].delta.content or ""
    assert streamed == whole.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called(litellm: ModuleType, asked: dict[str, Any], stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    asked = {**asked, "max_tokens": 80, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    answered = litellm.completion(messages=QUESTION, stream=stream, **asked)
    if stream:
        answered = litellm.stream_chunk_builder(list(answered), messages=QUESTION)
    [call] = answered.choices[0].message.tool_calls
    assert call.function.name == "weather" and call.function.arguments.startswith("{")


def test_an_answer_is_held_to_a_schema(litellm: ModuleType, live: LiveServer) -> None:
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    answered = litellm.completion(
        model=f"openai/{live.model}",
        api_base=live.openai_url,
        api_key="none",
        messages=QUESTION,
        response_format={"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}},
        max_tokens=40,
    )
    assert '"warm"' in answered.choices[0].message.content


def test_errors_are_litellm_s_own(litellm: ModuleType, asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=QUESTION, **{**asked, "temperature": 7})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=QUESTION, **{**asked, "model": f"{asked['model']}-other"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "one two three " * 1000}], **asked)
