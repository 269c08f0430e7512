"""Items become messages, and what is wrong with a message is told about its item."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import TypeAdapter

from octavo.server.errors import ApiError, invalid
from octavo.server.openai.responses_items import Input
from octavo.server.openai.responses_messages import Conversation, Placed
from octavo.server.openai.wording import Wording

READ: TypeAdapter[Any] = TypeAdapter(Input)
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Bern"}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"}
SAID = {"role": "assistant", "content": "Let me see."}
ASKED = {"role": "user", "content": "How warm is it?"}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


def conversation(*items: dict[str, Any], instructions: str | None = None) -> Conversation:
    read = READ.validate_python(list(items), strict=True)
    return Conversation(instructions, [Placed(f"input[{index}]", item.item()) for index, item in enumerate(read)])


def test_reasoning_text_and_calls_of_one_turn_are_one_message() -> None:
    messages = conversation(ASKED, THOUGHT, SAID, CALL, RESULT).messages
    assert messages == [
        ASKED,
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "18 degrees"},
    ]


def test_calls_in_a_row_are_calls_of_one_message() -> None:
    second = {**CALL, "call_id": "call_2"}
    messages = conversation(ASKED, CALL, second, RESULT, {**RESULT, "call_id": "call_2"}).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["call_1", "call_2"]


def test_text_after_a_call_stands_before_it() -> None:
    messages = conversation(ASKED, SAID, CALL, {"role": "assistant", "content": "Wait."}, RESULT).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert [part["text"] for part in messages[1]["content"]] == ["Let me see.", "Wait."]
    assert conversation(ASKED, CALL, SAID, RESULT).messages[1]["content"] == "Let me see."


def test_a_call_that_was_cut_off_was_never_made() -> None:
    cut = {**CALL, "arguments": '{"city": "Be', "status": "incomplete"}
    assert conversation(ASKED, cut, ASKED).messages == [ASKED, {"role": "assistant", "content": ""}, ASKED]
    assert conversation(ASKED, SAID, cut, ASKED).messages == [ASKED, SAID, ASKED]
    with pytest.raises(ApiError):
        conversation(ASKED, cut, RESULT)


def test_reasoning_belongs_to_what_follows_it_and_not_to_what_was_said_before() -> None:
    messages = conversation(ASKED, SAID, ASKED, THOUGHT, SAID).messages
    assert "reasoning_content" not in messages[1]
    assert messages[3]["reasoning_content"] == "Hm."


def test_reasoning_that_was_cut_off_is_a_message_of_its_own() -> None:
    messages = conversation(ASKED, THOUGHT, ASKED).messages
    assert messages[1] == {"role": "assistant", "content": "", "reasoning_content": "Hm."}


def test_a_summary_stands_for_reasoning_that_has_no_text() -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Brief."}]}
    assert conversation(ASKED, summary, SAID).messages[1]["reasoning_content"] == "Brief."
    assert "reasoning_content" not in conversation(ASKED, {"type": "reasoning", "summary": []}, SAID).messages[1]


def test_a_long_turn_takes_no_longer_than_its_items() -> None:
    texts = [f"{index} " + "x" * 2000 for index in range(10_000)]
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]} for text in texts]
    calls = [{**CALL, "call_id": f"call_{index}"} for index in range(10_000)]
    turn = [item for pair in zip([SAID] * 10_000, calls, strict=True) for item in pair]
    begun = time.process_time()
    message = conversation(*items, *turn).messages[0]
    assert time.process_time() - begun < 4
    assert message["reasoning_content"] == "\n".join(texts)
    assert len(message["content"]) == len(message["tool_calls"]) == 10_000


def test_instructions_come_first_and_developer_is_a_systems_later_name() -> None:
    developer = {"role": "developer", "content": "Be kind."}
    messages = conversation(developer, ASKED, instructions="Be brief.").messages
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert messages[1] == {"role": "system", "content": "Be kind."}


def test_parts_stay_parts_and_one_part_is_a_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert conversation({"role": "user", "content": parts[:1]}).messages[0]["content"] == "a"
    assert conversation({"role": "user", "content": parts}).messages[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_what_was_left_open_and_then_continued_is_one_message() -> None:
    read = READ.validate_python(
        [ASKED, {"role": "assistant", "content": "Let"}, {"role": "assistant", "content": "ter"}]
    )
    placed = [Placed("previous_response_id", item.item(), continues=index == 2) for index, item in enumerate(read)]
    assert Conversation(None, placed).messages[1:] == [{"role": "assistant", "content": "Letter"}]


def test_an_output_without_its_call_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        conversation(ASKED, RESULT, CALL)
    assert refused.value.param == "input[1].call_id"
    assert "'call_1'" in refused.value.message


@pytest.mark.parametrize(
    ("engines", "clients"),
    [
        ("messages[0].content", "instructions"),
        ("messages[1].content[0].text", "input[0].content[0].text"),
        ("messages[2].content", "input[2].content"),
        ("messages[2].tool_calls[0].function.arguments", "input[3].arguments"),
        ("messages[3].content", "input[4].content"),
        ("messages[77].content", "messages[77].content"),
        ("tools[2].function.parameters", "tools[2].parameters"),
        ("max_tokens", "max_output_tokens"),
        ("max_output_tokens", "max_output_tokens"),
        ("prompt", "input"),
    ],
)
def test_errors_are_told_in_the_clients_words(engines: str, clients: str) -> None:
    whole = conversation(ASKED, THOUGHT, SAID, CALL, RESULT, instructions="Be brief.")
    wording = Wording({"max_tokens": "max_output_tokens"}, {"prompt": "input"})
    told = whole.in_clients_words(invalid(f"{engines} is wrong", engines, code="some_code"), wording)
    assert told.param == clients
    assert told.code == "some_code"
    if engines != "prompt":  # a word, where it stands in a sentence
        assert told.message == f"{clients} is wrong"
