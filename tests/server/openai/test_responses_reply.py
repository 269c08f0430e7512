"""What a model says becomes items and events, whatever it says and however it is cut into increments."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from octavo.engine.outputs import Logprob
from octavo.server.answers import Finish, Increment
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.openai.responses_reply import ResponseReply
from octavo.server.openai.responses_schema import ResponseBody
from octavo.server.usage import Usage
from octavo.text.reply_parts import Reasoning, ReplyPart, Text, ToolArguments, ToolCallEnd, ToolCallStart

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALL = [ToolCallStart(0, "weather"), ToolArguments(0, '{"city": '), ToolArguments(0, '"Bern"}'), ToolCallEnd(0)]


class Vocabulary:
    """A tokenizer of five tokens, of which the last is special."""

    words = (b"Hel", b"lo", b"\xe2\x82", b"\xac", b"<end>")

    def token_bytes(self, token: int) -> bytes:
        return self.words[token]

    def is_special(self, token: int) -> bool:
        return token == 4


class SpokenAnswer:
    """An answer that says what it is told to."""

    def __init__(self, increments: list[Increment], error: ApiError | None = None) -> None:
        self._increments = increments
        self._error = error
        self.usage = Usage(prompt_tokens=7, cached_tokens=3, output_tokens=5, reasoning_tokens=2)

    async def increments(self) -> AsyncIterator[list[Increment]]:
        for increment in self._increments:
            yield [increment]
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        pass


def spoken(*parts: ReplyPart, finish: Finish = "stop") -> list[Increment]:
    """One increment for each part, and one that ends it."""
    return [*(Increment(0, [part], [1]) for part in parts), Increment(0, [], [2], finish=finish)]


def reply(answer: SpokenAnswer, kept: list[dict[str, Any]] | None = None, **body: Any) -> ResponseReply:
    keep = (lambda response: None) if kept is None else kept.append
    asked = ResponseBody(model="m", input="Hi", **body)
    return ResponseReply("resp_1", asked, answer, Vocabulary(), keep)  # type: ignore[arg-type]


async def whole(increments: list[Increment], **body: Any) -> dict[str, Any]:
    response = await reply(SpokenAnswer(increments), **body).collect()
    Response.model_validate_json(json.dumps(response), strict=True)
    return response


async def events(increments: list[Increment], error: ApiError | None = None, **body: Any) -> list[dict[str, Any]]:
    stream = reply(SpokenAnswer(increments, error), stream=True, **body)
    frames = b""
    try:
        async for piece in stream.frames():
            frames += piece
    except ApiError as raised:
        frames += stream.failed(raised)
    told = []
    for frame in frames.decode("ascii").split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_json(json.dumps(event), strict=True)
        told.append(event)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return told


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        named = ("id", "item_id", "call_id", "created_at", "completed_at")
        return {key: without_ids(item) for key, item in value.items() if key not in named}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


async def test_reasoning_text_and_calls_are_items_in_their_order() -> None:
    response = await whole(spoken(Reasoning("Hm"), Reasoning("."), Text("Let me "), Text("see."), *CALL))
    reasoning, message, call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "Let me see."
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Bern"})
    assert [item["id"].split("_")[0] for item in response["output"]] == ["rs", "msg", "fc"]
    assert call["call_id"].startswith("call_")
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


async def test_each_event_comes_in_its_place() -> None:
    told = await events(spoken(Reasoning("Hm."), Text("So"), Text(": "), *CALL))
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


async def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    response = await whole(spoken())
    assert [item["content"][0]["text"] for item in response["output"]] == [""]


@pytest.mark.parametrize(
    ("parts", "statuses"),
    [
        ([Text("So")], ["incomplete"]),
        ([Reasoning("Hm")], ["incomplete"]),
        ([Reasoning("Hm"), Text("So")], ["completed", "incomplete"]),
        ([Text("So"), *CALL], ["completed", "completed"]),
        ([], ["incomplete"]),
    ],
)
async def test_an_answer_at_its_limit_is_incomplete_and_so_is_its_last_item(
    parts: list[ReplyPart], statuses: list[str]
) -> None:
    response = await whole(spoken(*parts, finish="length"))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == statuses
    assert (await events(spoken(*parts, finish="length")))[-1]["type"] == "response.incomplete"


async def test_a_call_that_is_cut_off_is_incomplete() -> None:
    cut = [Increment(0, CALL[:2], [1]), Increment(0, [ToolCallEnd(0)], [2], finish="length")]
    whole_call = [Increment(0, CALL[:3], [1]), Increment(0, [ToolCallEnd(0)], [2], finish="length")]
    assert [(await whole(said))["output"][0]["status"] for said in (cut, whole_call)] == ["incomplete", "completed"]


@pytest.mark.parametrize("arguments", ['{"city": ', "[]", "{,}"])
async def test_a_call_that_cannot_be_made_is_incomplete(arguments: str) -> None:
    response = await whole(spoken(ToolCallStart(0, "weather"), ToolArguments(0, arguments), ToolCallEnd(0)))
    assert (response["output"][0]["status"], response["status"]) == ("incomplete", "completed")


PARTS = st.lists(
    st.one_of(st.builds(Text, st.text(min_size=1)), st.builds(Reasoning, st.text(min_size=1)), st.just(CALL)),
    max_size=6,
)


@given(PARTS, st.sampled_from(["stop", "length"]), st.data())
async def test_the_streams_response_is_the_one_that_is_not_streamed(
    parts: list[Any], finish: Finish, data: st.DataObject
) -> None:
    flat = [part for each in parts for part in (each if isinstance(each, list) else [each])]
    increments: list[Increment] = []
    while flat:
        size = data.draw(st.integers(1, len(flat)))
        increments.append(Increment(0, flat[:size], [1]))
        flat = flat[size:]
    increments.append(Increment(0, [], [2], finish=finish))
    told = await events(increments)
    assert without_ids(told[-1]["response"]) == without_ids(await whole(increments))
    for index, item in enumerate(told[-1]["response"]["output"]):
        own = [event for event in told if event.get("output_index") == index]
        deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        assert own[-1]["item"] == item
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}


async def test_log_probabilities_are_of_the_tokens_that_are_text() -> None:
    def scored(tokens: list[int]) -> list[dict[int, Logprob]]:
        return [{token: Logprob(-0.5, 1), (token + 1) % 5: Logprob(float("-inf"), 2)} for token in tokens]

    increments = [
        Increment(0, [Reasoning("Hm")], [1], scored([1])),
        Increment(0, [Text("Hel")], [0], scored([0])),
        Increment(0, [], [1, 2], scored([1, 2])),  # held back
        Increment(0, [Text("lo\u20ac")], [3], scored([3])),
        Increment(0, [], [4], scored([4]), finish="stop"),
    ]
    response = await whole(increments, include=["message.output_text.logprobs"], top_logprobs=1)
    part = response["output"][1]["content"][0]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == part["text"] == "Hello\u20ac"
    assert all(len(entry["top_logprobs"]) == 1 for entry in part["logprobs"])
    told = await events(increments, include=["message.output_text.logprobs"], top_logprobs=2)
    deltas = [event["logprobs"] for event in told if event["type"] == "response.output_text.delta"]
    assert [len(each) for each in deltas] == [1, 3]
    assert deltas[0][0]["top_logprobs"][1]["logprob"] == -9999.0
    assert (await whole(increments[1:]))["output"][0]["content"][0]["logprobs"] == []


async def test_an_answer_that_breaks_off_says_so_and_what_there_was_of_it() -> None:
    error = ApiError(ErrorKind.TIMEOUT, "too slow", code="timeout")
    told = await events([Increment(0, [Text("So")], [1])], error)
    assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
    assert (told[-2]["message"], told[-2]["code"]) == ("too slow", "timeout")
    failed = told[-1]["response"]
    assert (failed["status"], failed["error"]) == ("failed", {"code": "server_error", "message": "too slow"})
    assert [(item["status"], item["content"][0]["text"]) for item in failed["output"]] == [("incomplete", "So")]


async def test_only_what_is_complete_is_kept_and_before_the_client_is_told() -> None:
    kept: list[dict[str, Any]] = []
    stream = reply(SpokenAnswer(spoken(Text("So"))), kept, stream=True)
    async for frame in stream.frames():
        assert bool(kept) == (b"response.completed" in frame)
    broken = reply(SpokenAnswer([], ApiError(ErrorKind.TIMEOUT, "too slow")), kept)
    with pytest.raises(ApiError):
        await broken.collect()
    assert len(kept) == 1


async def test_what_was_asked_for_is_given_back() -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "max_tool_calls": 3,
        "previous_response_id": "resp_0",
        "store": False,
    }
    response = await whole(
        spoken(Text("So")),
        **asked,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        prompt_cache_options={"mode": "explicit"},
    )
    tool = response["tools"][0]
    assert {**asked, "tools": None} == {**{name: response[name] for name in asked}, "tools": None}
    assert {name: tool[name] for name in asked["tools"][0]} == asked["tools"][0]
    assert response["text"]["format"]["schema"] == {"type": "object"}
    assert response["text"]["verbosity"] == "low"
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}
    assert response["prompt_cache_options"] == {"mode": "explicit", "ttl": "30m"}
