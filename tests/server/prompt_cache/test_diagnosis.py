"""What became different between two prompts, by their texts first and their tokens then."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.diagnosis import Change, changed
from octavo.server.prompt_cache.history import Record
from octavo.server.requests import ChatRequest

SYSTEM, HI, HELLO, BYE = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"a": 1, "b": 2}}}
EARLIER = [1, 2, 3, 4, 5, 90, 91]  # the last two begin an answer


def record(tokens: list[int], *messages: dict[str, Any], model: str = "m", **more: Any) -> Record:
    request = ChatRequest(messages=list(messages), sampling=SamplingParams(), **more) if messages else None
    return Record("req_1", "t", b"", "/v1/messages", model, request, array("i", tokens), 0.0)


BEFORE = record(EARLIER, SYSTEM, HI)


def test_a_prompt_that_goes_on_with_the_answer_has_not_changed() -> None:
    assert changed(BEFORE, record([*EARLIER, 6, 7, 8], SYSTEM, HI, HELLO, BYE)) == Change("none", 7, 0)


def test_a_prompt_that_is_the_same_has_not_changed() -> None:
    assert changed(BEFORE, BEFORE) == Change("none", 7, 0)


def test_a_generation_prompt_that_an_answer_does_not_begin_with_is_no_change() -> None:
    now = record([1, 2, 3, 4, 5, 90, 6, 7, 8, 90, 91], SYSTEM, HI, HELLO, BYE)
    assert changed(BEFORE, now) == Change("none", 6, 0)


def test_going_back_to_an_earlier_turn_is_no_change() -> None:
    long = record([1, 2, 3, 4, 5, 90, 6, 7, 8, 90, 91], SYSTEM, HI, HELLO, BYE)
    assert changed(long, BEFORE) == Change("none", 6, 0)


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (record([1, 2, 9, 4, 5, 90, 91, 6], SYSTEM, HI, model="n", tools=[TOOL]), "model"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], {**SYSTEM, "content": "Be long."}, HI, tools=[TOOL]), "tools"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], {**SYSTEM, "content": "Be long."}, BYE), "system"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], HI), "system"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], SYSTEM, BYE), "messages"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], SYSTEM, HELLO, HI), "messages"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], SYSTEM, HI), "other"),
        (record([1, 2, 9, 4, 5, 90, 91, 6], SYSTEM, HI, HELLO, BYE), "other"),
    ],
)
def test_the_first_thing_that_differs_is_named_and_what_it_cost(now: Record, kind: str) -> None:
    assert changed(BEFORE, now) == Change(kind, 2, 5)


def test_no_more_is_missed_than_a_prompt_could_have_reused() -> None:
    assert changed(BEFORE, record([1, 2, 9, 4], SYSTEM, BYE)) == Change("messages", 2, 1)


def test_the_order_of_a_tools_keys_counts_for_templates_write_it() -> None:
    before = record(EARLIER, HI, tools=[TOOL])
    turned = {"type": "function", "function": {"name": "look", "parameters": {"b": 2, "a": 1}}}
    assert changed(before, record([1, 9, 8, 7], HI, tools=[turned])).kind == "tools"


def test_marks_are_no_difference() -> None:
    marked = [
        {**SYSTEM, "cache_control": {"type": "ephemeral"}},
        {**HI, "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    tool = {**TOOL, "cache_control": {"type": "ephemeral"}}
    before, now = record(EARLIER, SYSTEM, HI, tools=[TOOL]), record([1, 9], *marked, tools=[tool])
    assert changed(before, now).kind == "other"


def test_a_text_and_the_list_of_it_are_no_difference() -> None:
    listed = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert changed(BEFORE, record([1, 9, 9], SYSTEM, listed)).kind == "other"


def test_a_system_message_in_the_midst_is_a_message() -> None:
    before = record([1, 2, 3], HI, SYSTEM)
    assert changed(before, record([1, 9, 9], HI, {**SYSTEM, "content": "x"})).kind == "messages"


def test_an_answer_begun_by_the_client_may_be_ended_by_it() -> None:
    before = record([1, 2, 3, 60], HI, {"role": "assistant", "content": "Hel"})
    now = record([1, 2, 3, 61, 62, 90, 91], HI, HELLO, BYE)
    assert changed(before, now) == Change("none", 3, 0)
    assert changed(before, record([1, 2, 3, 61, 9], HI, {"role": "assistant", "content": "No"}, BYE)).kind == "messages"


def test_plain_prompts_go_on_or_do_not() -> None:
    before = record([1, 2, 3])
    assert changed(before, record([1, 2, 3, 4])) == Change("none", 3, 0)
    assert changed(before, record([1, 2, 9, 4])) == Change("messages", 2, 1)
    assert changed(before, replace(before, model="n")).kind == "model"
