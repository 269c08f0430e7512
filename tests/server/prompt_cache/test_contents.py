"""Names of what a prompt consists of, up to each place."""

from __future__ import annotations

from typing import Any

from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.contents import place_names
from octavo.server.requests import ChatRequest
from octavo.text.places import Place

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": 2}}}
ANOTHER = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 2, "a": 1}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "id": "2"}]},
    {"role": "tool", "tool_call_id": "1", "content": "x"},
]


def names(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> dict[Place, bytes]:
    return place_names(ChatRequest(messages=messages, sampling=SamplingParams(), tools=tools or []))


def common(one: dict[Place, bytes], other: dict[Place, bytes]) -> list[Place]:
    return [place for place, name in one.items() if name in other.values()]


def changed(index: int, **fields: Any) -> list[dict[str, Any]]:
    return [*MESSAGES[:index], {**MESSAGES[index], **fields}, *MESSAGES[index + 1 :]]


def test_every_place_has_a_name_of_its_own_in_the_order_of_the_prompt() -> None:
    found = names(MESSAGES, [TOOL])
    assert list(found) == [
        Place("tool", 0),
        Place("system", 0),
        Place("system", 1),
        Place("message", 0),
        Place("message", 1, part=0),
        Place("message", 1),
        Place("message", 2, part=0),
        Place("message", 2, call=0),
        Place("message", 2, call=1),
        Place("message", 2),
        Place("message", 3, part=0),
        Place("message", 3),
    ]
    assert len(set(found.values())) == len(found)


def test_a_change_gives_other_names_to_what_comes_from_there_on() -> None:
    before = names(MESSAGES, [TOOL])
    longer = [{"type": "text", "text": "A"}, {"type": "text", "text": "B and more"}]
    assert common(before, names(changed(0, content=longer), [TOOL])) == list(before)[:2]
    assert common(before, names(changed(2, tool_calls=[ANOTHER, CALL]), [TOOL])) == list(before)[:7]
    assert common(before, names(MESSAGES)) == []
    assert common(before, names([*MESSAGES, {"role": "user", "content": "More"}], [TOOL])) == list(before)


def test_what_is_said_in_one_form_or_another_has_one_name() -> None:
    before = names(MESSAGES, [TOOL])
    again = changed(1, content=[{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}])
    again[2] = {**again[2], "reasoning_content": "Hm.", "tool_calls": [CALL, CALL]}
    assert names(again, [{**TOOL, "cache_control": {"type": "ephemeral"}}]) == before
