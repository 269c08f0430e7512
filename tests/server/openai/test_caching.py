"""What fields and breakpoints come to: which places are marked, for how long, what is read and what is written."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import pytest

from octavo.engine.sampling_params import SamplingParams
from octavo.server.openai.caching import CachingBody
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.completions_schema import CompletionRequest
from octavo.server.openai.responses_diagnostics import diagnosed
from octavo.server.prompt_cache.caching import Caching
from octavo.server.prompt_cache.history import Record
from octavo.server.requests import ChatRequest
from octavo.server.usage import Usage
from octavo.text.places import Place

MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
CONTROL = {"cache_control": {"type": "ephemeral"}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def part(text: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **marks}


def caching(messages: list[dict[str, Any]], **fields: Any) -> Caching:
    return ChatCompletionRequest(model="m", messages=messages, **fields).chat_request().caching  # type: ignore[arg-type]


def marks(messages: list[dict[str, Any]], **fields: Any) -> list[tuple[Place, int, int]]:
    fields.setdefault("prompt_cache_options", {"mode": "explicit"})
    return [(mark.place, mark.position, mark.ttl) for mark in caching(messages, **fields).marks]


def test_every_place_that_can_carry_a_mark_is_counted_and_found_in_the_order_of_the_prompt() -> None:
    messages = [
        {"role": "developer", "content": [part("a"), part("b", **MARK)]},
        {"role": "system", "content": "c", **CONTROL},
        {"role": "user", "content": [part("d", **MARK), part("e")]},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL], **CONTROL},
        {"role": "tool", "tool_call_id": "c", "content": "f", **MARK},
        {"role": "system", "content": [part("g", **MARK)]},
    ]
    tool = {"type": "function", "function": {"name": "look"}}
    assert marks(messages, tools=[tool, {**tool, **CONTROL}]) == [
        (Place("tool", 1), 2, 300),
        (Place("system", 1), 4, 1800),
        (Place("system", 2), 5, 300),
        (Place("message", 2, part=0), 6, 1800),
        (Place("message", 3), 10, 300),
        (Place("message", 4), 11, 1800),
        (Place("message", 5, part=0), 12, 1800),
    ]


@pytest.mark.parametrize(
    ("mark", "ttl"),
    [
        (MARK, 43200),
        ({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}, 1800),
        (CONTROL, 300),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, 3600),
        ({**MARK, **CONTROL}, 43200),
        ({"prompt_cache_breakpoint": None, "cache_control": None}, None),
    ],
)
def test_a_mark_says_how_long_or_else_the_request(mark: Any, ttl: int | None) -> None:
    options = {"mode": "explicit", "ttl": "12h"}
    found = marks([{"role": "user", "content": [part("a", **mark)]}], prompt_cache_options=options)
    assert [each[2] for each in found] == ([] if ttl is None else [ttl])


@pytest.mark.parametrize(
    ("fields", "at_end", "reads"),
    [
        ({}, 1800, True),
        ({"prompt_cache_options": {}}, 1800, True),
        ({"prompt_cache_options": {"ttl": "12h"}}, 43200, True),
        ({"prompt_cache_options": {"ttl": "12h"}, "prompt_cache_retention": "24h"}, 86400, True),
        ({"prompt_cache_retention": "in_memory"}, 1800, True),
        ({"prompt_cache_retention": "in-memory"}, 1800, True),
        ({"prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"}, None, False),
    ],
)
def test_without_marks_the_end_of_the_prompt_is_kept_or_nothing_is(
    fields: Any, at_end: int | None, reads: bool
) -> None:
    asked: list[CachingBody] = [
        CompletionRequest(model="m", prompt="x", **fields),
        ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], **fields),  # type: ignore[list-item]
    ]
    for body in asked:
        found = body.caching()
        assert (found.at_end, found.reads, list(found.marks)) == (at_end, reads, [])


@pytest.mark.parametrize(("mode", "read", "written"), [("implicit", 3, 3), ("explicit", 80, 4)])
def test_of_many_marks_the_latest_count(mode: str, read: int, written: int) -> None:
    content = [part(str(number), **MARK) for number in range(90)]
    found = caching([{"role": "user", "content": content}], prompt_cache_options={"mode": mode})
    assert [mark.position for mark in found.marks] == list(range(90 - read + 1, 91))
    assert found.max_written == written


def test_what_is_written_is_split_by_how_long_it_is_kept_and_adds_up() -> None:
    usage = Usage(prompt_tokens=99, written_tokens=Counter({300: 1, 1800: 2, 3600: 4, 43200: 8, 86400: 16}))
    details = usage.openai_responses()["input_tokens_details"]
    assert details["cache_write_tokens"] == usage.openai()["prompt_tokens_details"]["cache_write_tokens"] == 31
    assert details["cache_write_tokens_details"] == {"ttl_30m_tokens": 7, "ttl_12h_tokens": 24}


def record(prompt: list[int], model: str = "m", **template_kwargs: Any) -> Record:
    request = ChatRequest(
        messages=[{"role": "user", "content": "x"}], sampling=SamplingParams(), template_kwargs=template_kwargs
    )
    made = Record("req_1", "t", b"", "/v1/responses", model, request, array("i", prompt), 0.0)
    made.num_kept = len(prompt)
    return made


def test_an_effort_that_switches_thinking_is_named_and_one_that_does_not_changes_nothing() -> None:
    before, now = record([1, 2, 3, 4]), record([1, 2, 5, 6, 7], enable_thinking=False)
    now.num_read = 2
    assert diagnosed(before, True, now) == {
        "type": "cache_miss",
        "reason": "reasoning_effort_changed",
        "comparison_reusable_tokens": 2,
        "cache_missed_tokens": 2,
    }
    same = record([1, 2, 3, 4])
    same.num_read = 3
    assert diagnosed(before, True, same) == {"type": "cache_hit"}


def test_another_name_of_the_model_is_no_reason() -> None:
    before, now = record([1, 2, 3, 4]), record([1, 2, 3, 4], model="alias")
    now.num_read = 3
    assert diagnosed(before, True, now) == {"type": "cache_hit"}
    now.num_read = 0  # evicted
    assert diagnosed(before, True, now) == {"type": "unavailable"}


@pytest.mark.parametrize(
    ("fields", "is_retained"),
    [
        ({}, False),
        ({"prompt_cache_retention": "in_memory"}, False),
        ({"prompt_cache_options": {"mode": "implicit"}}, False),
        ({"prompt_cache_options": {"ttl": "30m"}}, True),
        ({"prompt_cache_retention": "24h"}, True),
    ],
)
def test_the_end_of_a_prompt_is_held_on_to_only_where_that_is_asked_for(
    fields: dict[str, Any], is_retained: bool
) -> None:
    [end] = caching([{"role": "user", "content": "a"}], **fields).breakpoints([], 7)
    assert (end.num_tokens, end.is_written, end.is_retained) == (7, True, is_retained)
