"""Where ``cache_control`` may stand, what it then means, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.anthropic.schema import CountTokensRequest
from octavo.server.errors import ApiError
from octavo.server.prompt_cache.caching import FIVE_MINUTES, HOUR, Caching, Mark
from octavo.text.places import Place

USER = {"role": "user", "content": "Hi"}


def mark(ttl: str | None = None) -> dict[str, Any]:
    return {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "f", "input": {}, **more}


def result(name: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **more}


def caching(*messages: Any, **fields: Any) -> Caching:
    body = {"model": "m", "messages": list(messages) or [USER], **fields}
    return CountTokensRequest.model_validate(body).chat_request().caching


def marks(*messages: Any, **fields: Any) -> list[Mark]:
    return list(caching(*messages, **fields).marks)


M, C = mark(), {"cache_control": mark()}


def test_the_contract_is_anthropic_s_with_marks_and_without() -> None:
    wanted = caching()
    assert (wanted.contract, wanted.marks, wanted.look_back, wanted.max_written) == ("anthropic", [], 20, 4)
    assert (wanted.at_end, wanted.reads, wanted.key) == (None, True, None)


def test_a_time_to_live_is_five_minutes_unless_an_hour_is_asked_for() -> None:
    times = [marks(user(text("x", cache_control=mark(ttl))))[0].ttl for ttl in (None, "5m", "1h")]
    assert times == [FIVE_MINUTES, FIVE_MINUTES, HOUR]
    assert marks(user(text("x", cache_control={"type": "ephemeral", "ttl": None})))[0].ttl == FIVE_MINUTES


def test_marks_stand_on_tools_system_blocks_and_message_blocks_in_the_order_of_the_prompt() -> None:
    found = marks(
        user(text("a"), text("b", **C)),
        system=[text("A", **C), text("B")],
        tools=[tool("f"), tool("g", **C)],
        cache_control=None,
    )
    assert found == [
        Mark(Place("tool", 1), 2, FIVE_MINUTES),
        Mark(Place("system", 0), 3, FIVE_MINUTES),
        Mark(Place("message", 1, part=1), 6, FIVE_MINUTES),
    ]


def test_documents_and_search_results_are_blocks_like_text() -> None:
    source = {"type": "content", "content": [text("a"), text("b")]}
    document = {"type": "document", "source": source, **C}
    search = {"type": "search_result", "source": "s", "title": "t", "content": [text("c")], **C}
    assert marks(user(text("x"), document, search)) == [
        Mark(Place("message", 0, part=1), 2, FIVE_MINUTES),
        Mark(Place("message", 0, part=2), 3, FIVE_MINUTES),
    ]


def test_system_messages_that_come_first_are_system_blocks_and_later_ones_are_messages() -> None:
    system = {"role": "system", "content": [text("B", **C)]}
    assert marks(system, USER, system=[text("A")]) == [Mark(Place("system", 1), 2, FIVE_MINUTES)]
    assert marks(system, USER) == [Mark(Place("system", 0), 1, FIVE_MINUTES)]
    assert marks(USER, said(text("x")), USER, system) == [Mark(Place("message", 3, part=0), 4, FIVE_MINUTES)]


def test_places_are_those_of_joined_messages() -> None:
    found = marks(USER, user(text("b", **C)), said(text("x")), said(text("y", **C)), USER, system="S")
    assert [(m.place, m.position) for m in found] == [
        (Place("message", 1, part=1), 3),
        (Place("message", 2, part=1), 5),
    ]


def test_calls_in_a_row_are_one_position_and_so_are_results_in_a_row() -> None:
    found = marks(
        USER,
        said(text("Let me see."), use("1"), use("2", **C), use("3")),
        user(result("1"), result("2", **C), result("3"), text("And now?", **C)),
        said(text("So."), use("4", **C)),
        user(result("4")),
    )
    assert [(m.place, m.position) for m in found] == [
        (Place("message", 1, call=1), 3),
        (Place("message", 3), 4),
        (Place("message", 5, part=0), 5),
        (Place("message", 6, call=0), 7),
    ]


def test_a_mark_within_a_result_stands_on_its_part_in_the_same_position() -> None:
    parts = [text("a", **C), {"type": "document", "source": {"type": "content", "content": "b"}}, text("c", **C)]
    found = marks(USER, said(use("1"), use("2")), user(result("1"), result("2", parts, **C)))
    assert [(m.place, m.position) for m in found] == [
        (Place("message", 3, part=0), 3),
        (Place("message", 3, part=2), 3),
        (Place("message", 3), 3),
    ]


def test_thinking_is_a_position_that_nothing_can_be_marked_on() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    found = marks(USER, said(thought, {"type": "redacted_thinking", "data": "x"}, text("So.", **C)), USER)
    assert [(m.place, m.position) for m in found] == [(Place("message", 1, part=0), 4)]


def test_text_behind_a_call_is_covered_by_what_covers_the_call() -> None:
    """It is shown in front of the calls: a prefix with the call has all of it."""
    found = marks(USER, said(use("1"), text("x", **C), use("2")), user(result("1"), result("2")))
    assert [(m.place, m.position) for m in found] == [(Place("message", 1, call=0), 3)]


def test_the_automatic_mark_stands_on_the_last_block_that_can_be_marked() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert marks(user(text("a"), text("b")), cache_control=mark("1h")) == [Mark(Place("message", 0, part=1), 2, HOUR)]
    calls = marks(USER, said(use("1")), user(result("1", [text("a"), text("b")])), cache_control=M)
    assert calls == [Mark(Place("message", 2), 3, FIVE_MINUTES)]
    continued = marks(USER, said(thought, text("Well")), cache_control=M)
    assert continued == [Mark(Place("message", 1, part=0), 3, FIVE_MINUTES)]


def test_the_automatic_mark_does_nothing_where_an_equal_one_stands() -> None:
    block = user(text("a", **C))
    assert marks(block, cache_control=mark("5m")) == marks(block)
    four = [text(letter, **C) for letter in "abcd"]
    assert marks(user(*four), cache_control=M) == marks(user(*four)), "it takes none of the four places"


def tools_marked(count: int) -> list[Any]:
    return [tool(f"f{index}", **C) for index in range(count)]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": [user(*(text("x", **C) for _ in range(5)))]}, "messages[0].content[4].cache_control", "Found 5"),
    ({"tools": tools_marked(4), "system": [text("s", **C)]}, "system[0].cache_control", "maximum of 4"),
    ({"tools": tools_marked(4), "cache_control": M}, "cache_control", "Found 5"),
    ({"tools": tools_marked(7), "cache_control": M}, "tools[4].cache_control", "Found 8"),
    (
        {"tools": tools_marked(1), "system": [text("s", cache_control=mark("1h"))]},
        "system[0].cache_control.ttl",
        "must not come after",
    ),
    (
        {"messages": [user(text("x", cache_control=mark("5m")), text("y", cache_control=mark("1h")))]},
        "messages[0].content[1].cache_control.ttl",
        "must not come after",
    ),
    ({"tools": tools_marked(1), "cache_control": mark("1h")}, "cache_control.ttl", "must not come after"),
    ({"messages": [user(text("x", **C))], "cache_control": mark("1h")}, "cache_control.ttl", "messages[0].content[0]"),
    (
        {"messages": [user(text("x", cache_control=mark("1h")))], "cache_control": M},
        "cache_control.ttl",
        "messages[0].content[0]",
    ),
]


@pytest.mark.parametrize("fields, param, words", REFUSED)
def test_a_broken_rule_is_refused_and_the_field_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        caching(*fields.get("messages", []), **{name: it for name, it in fields.items() if name != "messages"})
    assert (refused.value.status_code, refused.value.param) == (400, param)
    assert param in refused.value.message and words in refused.value.message


def test_an_hour_may_come_before_five_minutes() -> None:
    fields = {"tools": [tool(cache_control=mark("1h"))], "system": [text("s", cache_control=mark("1h"))]}
    found = marks(user(text("x", **C)), **fields)
    assert [m.ttl for m in found] == [HOUR, HOUR, FIVE_MINUTES]
