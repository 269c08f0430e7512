"""How the API's messages become those of a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.anthropic.schema import CountTokensRequest
from octavo.server.errors import ApiError

USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"z": 1, "a": [None, "x"]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "18 °C"}
ASKED = [{"role": "user", "content": "How warm is it?"}, {"role": "assistant", "content": [USE]}]


def rendered(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    body = CountTokensRequest.model_validate({"model": "m", "messages": list(messages), **fields})
    return body.chat_request().messages


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_a_string_and_one_block_of_it_are_the_same() -> None:
    assert rendered({"role": "user", "content": "Hi"}) == rendered({"role": "user", "content": [text("Hi")]})


def test_system_text_comes_first_and_its_blocks_stay_parts() -> None:
    user = {"role": "user", "content": "Hi"}
    assert rendered(user, system="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    assert rendered(user, system=[text("A"), text("B")])[0] == {"role": "system", "content": [text("A"), text("B")]}
    assert rendered(user, system="") == rendered(user, system=[]) == rendered(user)


def test_a_system_message_joins_the_system_text_where_it_comes_first_and_stays_where_it_does_not() -> None:
    said, user = {"role": "system", "content": "B"}, {"role": "user", "content": "Hi"}
    assert rendered(said, user, system="A")[0] == {"role": "system", "content": [text("A"), text("B")]}
    roles = [m["role"] for m in rendered(user, {"role": "assistant", "content": "x"}, user, said)]
    assert roles == ["user", "assistant", "user", "system"]


def test_messages_of_one_role_in_a_row_are_one() -> None:
    messages = rendered(
        {"role": "user", "content": "A"},
        {"role": "user", "content": [text("B"), text("C")]},
        {"role": "assistant", "content": "D"},
        {"role": "assistant", "content": "E"},
    )
    assert messages == [
        {"role": "user", "content": [text("A"), text("B"), text("C")]},
        {"role": "assistant", "content": [text("D"), text("E")]},
    ]


def test_markers_citations_and_callers_leave_nothing_behind() -> None:
    marker = {"type": "ephemeral", "ttl": "1h"}
    use = {**USE, "cache_control": marker, "caller": {"type": "direct"}}
    messages = rendered(
        {"role": "user", "content": [text("Hi", cache_control=marker, citations=[{"type": "char_location"}])]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{**RESULT, "cache_control": marker}]},
        cache_control=marker,
    )
    assert messages == rendered({"role": "user", "content": "Hi"}, ASKED[1], {"role": "user", "content": [RESULT]})


def test_calls_keep_their_arguments_in_order_and_results_come_before_what_the_user_says() -> None:
    messages = rendered(
        ASKED[0],
        {"role": "assistant", "content": [text("Let me see."), USE, {**USE, "id": "toolu_2"}]},
        {"role": "user", "content": [{**RESULT, "tool_use_id": "toolu_2"}, RESULT, text("And now?")]},
    )
    assert messages[1]["content"] == "Let me see."
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert list(messages[1]["tool_calls"][0]["function"]["arguments"]) == ["z", "a"]
    assert [(m["role"], m.get("tool_call_id")) for m in messages[2:]] == [
        ("tool", "toolu_2"),
        ("tool", "toolu_1"),
        ("user", None),
    ]


@pytest.mark.parametrize(
    "result, shown",
    [
        ({}, ""),
        ({"content": []}, ""),
        ({"content": "no"}, "no"),
        ({"content": "no", "is_error": True}, "Error: no"),
        ({"is_error": True}, "Error"),
        ({"content": [text("a"), text("b")]}, [text("a"), text("b")]),
        ({"content": [text("a"), text("b")], "is_error": True}, [text("Error: a"), text("b")]),
    ],
)
def test_what_a_result_shows(result: dict[str, Any], shown: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **result}
    assert rendered(*ASKED, {"role": "user", "content": [block]})[2]["content"] == shown


def test_thinking_goes_to_the_template_as_reasoning_and_what_is_redacted_goes_nowhere() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "xx"}
    user = {"role": "user", "content": "Hi"}
    messages = rendered(user, {"role": "assistant", "content": [thought, redacted, text("Hello")]}, user)
    assert messages[1] == {"role": "assistant", "reasoning_content": "Hm.", "content": "Hello"}
    assert rendered(user, {"role": "assistant", "content": [redacted]}, user)[1] == {"role": "assistant", "content": ""}


def test_documents_and_search_results_are_shown_as_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "It is warm."}
    document = {"type": "document", "source": source, "title": "Bern", "context": "2024"}
    parts = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    found = {"type": "search_result", "source": "http://x", "title": "X", "content": [text("c")]}
    content = rendered({"role": "user", "content": [document, parts, found]})[0]["content"]
    assert [part["text"] for part in content] == [
        "<document>\n<title>Bern</title>\n<context>2024</context>\nIt is warm.\n</document>",
        "<document>\na\nb\n</document>",
        "<search_result>\n<source>http://x</source>\n<title>X</title>\nc\n</search_result>",
    ]


def test_an_empty_assistant_message_at_the_end_is_as_good_as_none() -> None:
    user = {"role": "user", "content": "Hi"}
    assert rendered(user, {"role": "assistant", "content": ""}) == rendered(user)
    assert rendered(user, {"role": "assistant", "content": []}) == rendered(user)


USER, SAID = ASKED[0], {"role": "assistant", "content": "x"}
ANSWERED = {"role": "user", "content": [RESULT]}


@pytest.mark.parametrize(
    "messages, named",
    [
        ([SAID], "messages[0]"),
        ([{"role": "system", "content": "x"}], "messages"),
        ([{"role": "system", "content": "x"}, SAID], "messages[1]"),
        ([{"role": "user", "content": ""}], "messages[0].content"),
        ([USER, {"role": "assistant", "content": []}, USER], "messages[1].content"),
        ([ANSWERED], "messages[0].content[0].tool_use_id"),
        ([*ASKED], "toolu_1"),
        ([*ASKED, USER], "toolu_1"),
        ([*ASKED, {"role": "system", "content": "x"}, ANSWERED], "toolu_1"),
        ([*ASKED, {"role": "user", "content": [RESULT, RESULT]}], "messages[2].content[1].tool_use_id"),
        ([*ASKED, {"role": "user", "content": [text("x"), RESULT]}], "messages[2].content[1]"),
        ([*ASKED, USER, ANSWERED], "messages[3].content[0]"),
        (
            [*ASKED, {"role": "user", "content": [{**RESULT, "tool_use_id": "no"}]}],
            "messages[2].content[0].tool_use_id",
        ),
        ([*ASKED, ANSWERED, SAID, ANSWERED], "messages[4].content[0].tool_use_id"),
        ([*ASKED, ANSWERED, ASKED[1], ANSWERED], "messages[3].content[0].id"),
        ([USER, {"role": "assistant", "content": [USE, USE]}, ANSWERED], "messages[1].content[1].id"),
        ([{"role": "user", "content": [USE]}], "messages[0].content[0]"),
        ([USER, {"role": "assistant", "content": [RESULT]}], "messages[1].content[0]"),
        ([USER, {"role": "system", "content": [USE]}], "messages[1].content[0]"),
        ([USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}], "messages[1].content[0]"),
    ],
)
def test_a_broken_rule_is_refused_with_its_place(messages: list[Any], named: str) -> None:
    with pytest.raises(ApiError) as refused:
        rendered(*messages)
    assert refused.value.status_code == 400
    assert named in refused.value.message
