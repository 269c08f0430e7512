"""Lines that clients change each time: what is left of a request without them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.caching import Caching, Mark
from octavo.server.prompt_cache.volatile import without_volatile_lines, without_volatile_system_lines
from octavo.server.requests import ChatRequest
from octavo.text.places import Place

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def request(*messages: Any, places: tuple[Place, ...] = (), tools: int = 0) -> ChatRequest:
    marks = [Mark(place, position, 300) for position, place in enumerate(places, 1)]
    return ChatRequest(
        messages=list(messages), sampling=SamplingParams(), tools=[TOOL] * tools, caching=Caching(marks=marks)
    )


def without(wanted: ChatRequest) -> ChatRequest:
    return without_volatile_system_lines(wanted, ["x-", "y-"])


def places(wanted: ChatRequest) -> list[Place]:
    return [mark.place for mark in without(wanted).caching.marks]


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x-1\nyes", "yes"),
        ("x-1\ny-2\nx-3\nyes\nx-4", "yes\nx-4"),
        ("x-1\r\nyes", "yes"),
        ("x-1", ""),
        ("x-1\n", ""),
        ("x-1\n\nyes", "\nyes"),
        (" x-1\nyes", " x-1\nyes"),
        ("yes\nx-1", "yes\nx-1"),
        ("", ""),
    ],
)
def test_lines_at_the_beginning_are_left_out_and_no_others(text: str, left: str) -> None:
    assert without_volatile_lines(text, ["x-", "y-"]) == left
    assert without_volatile_lines(text, []) == text


def test_blocks_of_which_nothing_is_left_go_until_one_stays() -> None:
    system = {"role": "system", "content": parts("x-1\ny-2", "x-3\nBe brief.", "x-4")}
    assert without(request(system, USER)).messages == [
        {"role": "system", "content": parts("Be brief.", "x-4")},
        USER,
    ]


def test_a_system_message_of_such_lines_alone_goes_and_the_next_one_is_looked_at() -> None:
    messages = [{"role": "system", "content": "x-1"}, {"role": "developer", "content": "x-2\nBe brief."}, USER]
    assert without(request(*messages)).messages == [{"role": "developer", "content": "Be brief."}, USER]


def test_what_has_no_such_line_is_the_request_itself() -> None:
    for messages in ([USER], [{"role": "system", "content": ""}, USER], [{"role": "user", "content": "x-1"}]):
        wanted = request(*messages)
        assert without(wanted) is wanted
    alone = request({"role": "system", "content": "x-1"})
    assert without(alone) is alone, "a conversation has at least one message"
    assert without_volatile_system_lines(alone, []) is alone


def test_marks_move_with_what_they_stand_on() -> None:
    system = {"role": "system", "content": parts("x-1", "Be brief.", "Be kind.")}
    wanted = request(system, USER, places=(Place("system", 1), Place("system", 2), Place("message", 1, part=0)))
    assert places(wanted) == [Place("system", 0), Place("system", 1), Place("message", 1, part=0)]
    assert [mark.position for mark in without(wanted).caching.marks] == [1, 2, 3], "as the client counts"
    gone = request({"role": "system", "content": "x-1"}, USER, places=(Place("message", 1, part=0),))
    assert places(gone) == [Place("message", 0, part=0)]


def test_a_mark_on_what_is_gone_stands_on_the_tools_or_nowhere() -> None:
    system = {"role": "system", "content": parts("x-1", "Be brief.")}
    assert places(request(system, USER, places=(Place("system", 0),))) == []
    assert places(request(system, USER, places=(Place("system", 0),), tools=2)) == [Place("tool", 1)]
