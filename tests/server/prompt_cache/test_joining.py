"""What a request becomes that begins with a named cache."""

from __future__ import annotations

from array import array
from typing import Any

from octavo.engine.sampling_params import SamplingParams
from octavo.server.errors import invalid
from octavo.server.prompt_cache.caching import Caching, Mark
from octavo.server.prompt_cache.joining import beginning_with, renumbered
from octavo.server.prompt_cache.named import Content, NamedCache
from octavo.server.requests import ChatRequest
from octavo.text.places import Place

SYSTEM = {"role": "system", "content": [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}]}
USER = {"role": "user", "content": "Hello"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("first", "second")]


def cache(**content: Any) -> NamedCache:
    return NamedCache("one", b"", "model", None, Content(**content), array("i", range(10)), 0.0, 100.0, 100.0)


def request(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    return ChatRequest(messages=[*messages], sampling=SamplingParams(), **more)


def test_marks_move_behind_the_cache_with_the_messages_they_stand_in() -> None:
    marks = [Mark(Place("message", 0, part=1), 2, 300), Mark(Place("message", 1), 3, 3600)]
    own = request(USER, USER, caching=Caching(marks=marks, reads=False), cache="caches/x")
    whole = beginning_with(cache(messages=[SYSTEM, USER], tools=TOOLS), own)
    assert whole.messages == [SYSTEM, USER, USER, USER] and whole.tools == TOOLS
    assert [(mark.place, mark.position, mark.ttl) for mark in whole.caching.marks] == [
        (Place("message", 2, part=1), 2 + 5, 300),
        (Place("message", 3), 3 + 5, 3600),
    ]
    assert whole.caching.reads and whole.cache is None
    assert own.messages == [USER, USER]


def test_errors_are_told_by_the_clients_numbers_and_what_stands_before_by_its_name() -> None:
    error = invalid("messages[3].content and messages[1].content differ", "messages[3].content", code="a_code")
    own = renumbered(error, 2, "cache")
    assert own.message == "messages[1].content and cache.content differ"
    assert (own.param, own.code, own.kind) == ("messages[1].content", "a_code", error.kind)
