"""POST /v1/messages and /v1/messages/count_tokens over HTTP, with the embedded model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message
from live_server import LiveServer

from octavo import LLM, SamplingParams

Ask = Callable[..., Message]
SYSTEM = "You are a careful helper who answers in one short sentence."
TURNS: Any = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "It is Paris."},
    {"role": "user", "content": "And of Italy?"},
]
TOOL: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def llm(smollm2_gguf: Path) -> Iterator[LLM]:
    with LLM(smollm2_gguf, kv_memory="64MiB", max_model_len=2048, threads=1) as model:
        yield model


def words(message: Message) -> str:
    assert [block.type for block in message.content] == ["text"]
    return message.content[0].text  # type: ignore[union-attr]


def total_input(message: Message) -> int:
    usage = message.usage
    assert usage.cache_creation is not None
    written = usage.cache_creation.ephemeral_5m_input_tokens + usage.cache_creation.ephemeral_1h_input_tokens
    assert written == usage.cache_creation_input_tokens
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + written


def test_a_message_says_what_the_model_says_in_this_process(ask: Ask, llm: LLM) -> None:
    message = ask(TURNS, system=SYSTEM)
    conversation = [{"role": "system", "content": SYSTEM}, *TURNS]
    [output] = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=24))
    assert words(message) == output.outputs[0].text
    assert message.usage.output_tokens == len(output.outputs[0].token_ids)
    assert total_input(message) == len(output.prompt_token_ids)
    assert (message.role, message.type, message.stop_sequence) == ("assistant", "message", None)
    assert message.id.startswith("msg_") and message.usage.service_tier == "standard"


def test_a_prefilled_answer_is_continued_where_it_broke_off(ask: Ask, llm: LLM) -> None:
    turns = [TURNS[0], {"role": "assistant", "content": "The capital of France is the city of "}]
    message = ask(turns)
    sampling = SamplingParams(temperature=0, max_tokens=24)
    rendered = llm.render(turns, continue_final_message=True)
    assert rendered.text.endswith("The capital of France is the city of "), "no marker of a new turn"
    [output] = llm.chat(turns, sampling, continue_final_message=True)
    assert words(message) == output.outputs[0].text
    assert total_input(message) == len(rendered.prompt_token_ids)


@pytest.mark.parametrize("stop", ["Red: Th", "d:", "s the most obvious", "no such words"])
def test_nothing_of_a_stop_sequence_is_said_streamed_or_not(
    stop: str, ask: Ask, client: Anthropic, live: LiveServer
) -> None:
    question: Any = [{"role": "user", "content": "Name three colours."}]
    free = words(ask(question))
    message = ask(question, stop_sequences=[stop, "zzz"])
    assert words(message) == free.partition(stop)[0]
    ended = ("stop_sequence", stop) if stop in free else ("max_tokens", None)
    assert (message.stop_reason, message.stop_sequence) == ended
    fields: Any = {"model": live.model, "max_tokens": 24, "messages": question, "stop_sequences": [stop, "zzz"]}
    with client.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == words(message)
        streamed = stream.get_final_message()
    assert same(streamed, message)


def same(one: Message, other: Message) -> bool:
    """Equal but for ids, and for how much of the prompt was cached already."""
    blank = {"id", "cache_read_input_tokens", "input_tokens", "parsed_output"}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name not in blank}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return bool(plain(one.model_dump()) == plain(other.model_dump()) and total_input(one) == total_input(other))


async def test_the_async_client_gets_the_same_whole_and_streamed(ask: Ask, live: LiveServer) -> None:
    fields: Any = {"model": live.model, "max_tokens": 24, "messages": TURNS, "system": SYSTEM}
    async with AsyncAnthropic(base_url=live.url, auth_token="none", max_retries=0, timeout=60) as client:
        message = await client.messages.create(**fields, extra_body={"temperature": 0})
        async with client.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
            pieces = [piece async for piece in stream.text_stream]
            streamed = await stream.get_final_message()
    assert same(message, ask(TURNS, system=SYSTEM))
    assert same(streamed, message)
    assert "".join(pieces) == words(message) and len(pieces) > 3


def test_events_come_in_the_order_of_the_api_each_with_its_name(post: Callable[..., httpx.Response]) -> None:
    response = post(stream=True, max_tokens=3)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = [frame.splitlines() for frame in response.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in events]
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert events[-2]["usage"]["output_tokens"] == 3
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert events[-2]["usage"][name] == start["usage"][name]


def test_tokens_are_counted_as_a_message_uses_them(ask: Ask, client: Anthropic, live: LiveServer) -> None:
    cases: list[dict[str, Any]] = [
        {"messages": TURNS},
        {"messages": TURNS, "system": [{"type": "text", "text": SYSTEM}, {"type": "text", "text": "Be brief."}]},
        {"messages": TURNS, "tools": [TOOL], "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"}},
        {"messages": [TURNS[0], {"role": "assistant", "content": "It is"}], "cache_control": {"type": "ephemeral"}},
    ]
    for case in cases:
        counted = client.messages.count_tokens(model=live.model, **case)
        rest = {name: value for name, value in case.items() if name != "messages"}
        assert counted.input_tokens == total_input(ask(case["messages"], max_tokens=1, **rest))


def test_an_output_format_is_kept_to(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
    form = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    message = ask(TURNS, max_tokens=40, output_config={"format": form, "effort": "low"})
    assert list(json.loads(words(message))) == ["city"] and message.stop_reason == "end_turn"
    assert words(ask(TURNS, max_tokens=40, extra_body={"output_format": form})) == words(message)


def test_what_is_accepted_without_effect_has_none(ask: Ask) -> None:
    plain = ask(TURNS)
    fields: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "diagnostics": {"previous_message_id": plain.id},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "speed": "standard",
        "extra_headers": {"anthropic-version": "2099-01-01", "anthropic-beta": "a-thing-2099-01-01"},
        "extra_body": {
            "container": None,
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
    }
    assert same(ask(TURNS, **fields), plain)
