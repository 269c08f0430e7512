from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from live_server import LiveServer
from openai import OpenAI
from pydantic import BaseModel

ASK = [{"role": "user", "content": "How warm is it in Bern and in Rome?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Warmth", "parameters": PARAMETERS}}
TIME = {"type": "function", "function": {"name": "time", "strict": True, "parameters": PARAMETERS}}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "size": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "size"],
    "additionalProperties": False,
}


def streamed_calls(chunks: Any) -> list[tuple[str, str]]:
    """Name and arguments of each call of a stream, checked for the order in which they come."""
    calls: list[list[str]] = []
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            if call.index == len(calls):
                assert call.id.startswith("call_") and call.type == "function"
                calls.append([call.function.name, call.function.arguments])
            else:
                assert call.index == len(calls) - 1 and call.id is None and call.function.name is None
                calls[-1][1] += call.function.arguments
    return [(name, arguments) for name, arguments in calls]


def check_arguments(arguments: str) -> None:
    found = json.loads(arguments)
    assert set(found) == {"city", "unit"} and found["unit"] in ("C", "F") and len(found["city"]) <= 8


NAMED = {"type": "function", "function": {"name": "time"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"weather", "time"}), (NAMED, {"time"}), (ALLOWED, {"time"})]
)
def test_a_forced_call_has_arguments_of_its_schema(ask: Any, choice: Any, names: set[str]) -> None:
    fields = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": False}
    [answer] = ask(ASK, max_completion_tokens=80, **fields).choices
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    [call] = answer.message.tool_calls
    assert call.function.name in names
    check_arguments(call.function.arguments)
    chunks = ask(ASK, max_completion_tokens=80, stream=True, **fields)
    assert streamed_calls(chunks) == [(call.function.name, call.function.arguments)]


def test_several_calls_stand_side_by_side_each_with_its_id(ask: Any) -> None:
    fields: Any = {"tools": [WEATHER], "tool_choice": "required", "max_completion_tokens": 100}
    *calls, last = ask(ASK, **fields).choices[0].message.tool_calls
    assert calls and len({call.id for call in [*calls, last]}) == len(calls) + 1
    for call in calls:  # the last one may have been cut off
        check_arguments(call.function.arguments)
    told = [(call.function.name, call.function.arguments) for call in [*calls, last]]
    assert streamed_calls(ask(ASK, stream=True, **fields)) == told


def test_without_a_choice_the_model_may_call_and_with_none_it_cannot(ask: Any) -> None:
    auto = ask(ASK, tools=[WEATHER]).choices[0]
    assert auto.message.content is not None or auto.message.tool_calls
    none = ask(ASK, tools=[WEATHER], tool_choice="none").choices[0]
    assert none.message.tool_calls is None and none.message.content
    whole = ask(ASK, tools=[WEATHER], tool_choice="none", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in whole) == none.message.content


def test_allowed_tools_keep_the_prompt_that_all_tools_have(ask: Any) -> None:
    every, allowed = (ask(ASK, tools=[WEATHER, TIME], tool_choice=choice) for choice in ("required", ALLOWED))
    assert every.usage.prompt_tokens == allowed.usage.prompt_tokens
    assert allowed.usage.prompt_tokens_details.cached_tokens > 0


def test_results_of_tools_are_told_to_the_model(ask: Any) -> None:
    fields: Any = {"tool_choice": "required", "parallel_tool_calls": False, "max_completion_tokens": 80}
    answer = ask(ASK, tools=[WEATHER], **fields).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "18 °C"}]}
        for call in answer.tool_calls
    ]
    told = ask([*ASK, answer.model_dump(), *results], tools=[WEATHER], tool_choice="none")
    assert told.choices[0].message.content
    with_null = {**answer.model_dump(exclude_none=True), "content": None}
    assert ask([*ASK, with_null, *results], tools=[WEATHER], tool_choice="none").choices == told.choices


def test_an_answer_is_json_of_the_schema(ask: Any) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}
    answer = ask(ASK, response_format=wanted).choices[0]
    found = json.loads(answer.message.content)
    assert set(found) == {"colour", "size"} and found["colour"] in ("red", "blue") and 1 <= found["size"] <= 9
    assert answer.finish_reason == "stop"
    chunks = ask(ASK, response_format=wanted, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.message.content


def test_json_object_is_an_object(ask: Any) -> None:
    question = [{"role": "user", "content": 'Answer with {"a": 1} as JSON.'}]
    answer = ask(question, response_format={"type": "json_object"}, max_completion_tokens=200, stop="}").choices[0]
    assert answer.message.content.startswith("{")


def test_the_sdk_parses_into_a_model(client: OpenAI, live: LiveServer) -> None:
    class Thing(BaseModel):
        colour: Literal["red", "blue"]
        exists: bool

    fields: Any = {"model": live.model, "messages": ASK, "temperature": 0}
    parsed = client.chat.completions.parse(response_format=Thing, **fields).choices[0].message.parsed
    assert isinstance(parsed, Thing)


def test_the_sdk_parses_a_call(client: OpenAI, live: LiveServer) -> None:
    class Weather(BaseModel):
        city: Literal["Bern", "Rome"]

    tool = openai.pydantic_function_tool(Weather)
    fields: Any = {"messages": ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = client.chat.completions.parse(model=live.model, temperature=0, **fields).choices
    assert choice.message.tool_calls
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Weather)
