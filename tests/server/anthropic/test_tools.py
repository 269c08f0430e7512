"""Tools over HTTP: calls that fit their schemas, and their results in the next request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types import Message, ToolUseBlock
from live_server import LiveServer

Ask = Callable[..., Message]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 5}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CLOCK: Any = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
ONE = {"disable_parallel_tool_use": True}
QUESTION: Any = [{"role": "user", "content": "How warm is it in Bern?"}]


def calls(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


@pytest.mark.parametrize("choice", [{"type": "any", **ONE}, {"type": "tool", "name": "weather", **ONE}])
def test_a_forced_call_fits_its_schema_and_its_result_is_taken_up(ask: Ask, choice: Any) -> None:
    message = ask(QUESTION, max_tokens=60, tools=[WEATHER], tool_choice=choice)
    [call] = calls(message)
    assert message.stop_reason == "tool_use" and [block.type for block in message.content] == ["tool_use"]
    assert call.name == "weather" and call.id.startswith("toolu_")
    assert list(call.input) == ["city", "days"]
    assert isinstance(call.input["city"], str) and isinstance(call.input["days"], int)

    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is 31 degrees in Bern."}
    turns = [*QUESTION, {"role": "assistant", "content": message.content}]
    answer = ask([*turns, {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}], tools=[WEATHER])
    assert answer.content and not calls(answer)


def test_the_tool_that_is_named_is_called(ask: Ask) -> None:
    message = ask(QUESTION, max_tokens=60, tools=[WEATHER, CLOCK], tool_choice={"type": "tool", "name": "clock", **ONE})
    assert [(call.name, call.input) for call in calls(message)] == [("clock", {})]


def test_several_calls_have_ids_of_their_own(ask: Ask) -> None:
    tools = [{**CLOCK, "name": name} for name in ("clock", "moon")]
    message = ask("Call both the clock and the moon.", max_tokens=70, tools=tools, tool_choice={"type": "any"})
    assert len({call.id for call in calls(message)}) == len(calls(message)) >= 2


@pytest.mark.parametrize("choice", [{"type": "none"}, {"type": "auto"}])
def test_a_call_that_is_not_forced_is_a_call_or_text(ask: Ask, choice: Any) -> None:
    message = ask(QUESTION, max_tokens=60, tools=[WEATHER], tool_choice=choice)
    if choice["type"] == "none":
        assert not calls(message)
    assert message.stop_reason == ("tool_use" if calls(message) else message.stop_reason)


@pytest.mark.parametrize("max_tokens", [60, 20, 17])
def test_a_streamed_call_is_the_whole_one_also_where_it_was_cut_off(
    ask: Ask, client: Anthropic, live: LiveServer, max_tokens: int
) -> None:
    fields: Any = {"max_tokens": max_tokens, "tools": [WEATHER], "tool_choice": {"type": "any", **ONE}}
    whole = ask(QUESTION, **fields)
    with client.messages.stream(model=live.model, messages=QUESTION, **fields, extra_body={"temperature": 0}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert [(call.name, call.input) for call in calls(streamed)] == [(call.name, call.input) for call in calls(whole)]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert whole.stop_reason == ("tool_use" if max_tokens == 60 else "max_tokens")
    assert len(pieces) > 1 and calls(whole)


def test_a_stop_sequence_within_a_call_ends_the_answer_as_one(ask: Ask) -> None:
    message = ask(QUESTION, max_tokens=60, tools=[WEATHER], tool_choice={"type": "any"}, stop_sequences=['"days'])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", '"days')
    assert [list(call.input) for call in calls(message)] == [["city"]]
