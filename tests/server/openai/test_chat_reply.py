"""Chunks and whole answers of what no small model says on its own: reasoning, and everything in one increment."""

from __future__ import annotations

import json
from typing import Any

from octavo.engine.outputs import Logprob
from octavo.server.answers import Increment, Reply, ToolCall
from octavo.server.openai.chat_reply import ChatReply
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.chunks import DONE
from octavo.server.usage import Usage
from octavo.text.reply_parts import Reasoning, Text, ToolArguments, ToolCallEnd, ToolCallStart

HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": "fp_1"}


class Spelling:
    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


class Said:
    """An answer that says what it is told to."""

    num_choices = 1
    usage = Usage(prompt_tokens=2, output_tokens=3)

    def __init__(self, *increments: Increment) -> None:
        self._increments = increments

    async def increments(self) -> Any:
        for increment in self._increments:
            yield [increment]


def reply(**fields: Any) -> ChatReply:
    body = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], **fields)  # type: ignore[list-item]
    tokenizer: Any = Spelling()
    return ChatReply(HEAD, body, tokenizer)


async def choices(answer: Any, **fields: Any) -> list[Any]:
    sent = [frame async for frame in reply(stream=True, **fields).frames(answer)]
    frames = b"".join(sent).split(b"\n\n")
    assert sent[-1] == DONE and frames[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    return [choice for chunk in chunks for choice in chunk["choices"]]


async def test_all_that_one_increment_says_is_one_chunk() -> None:
    parts = [
        Reasoning("hm"),
        Reasoning("m"),
        Text("So"),
        ToolCallStart(0, "f"),
        ToolArguments(0, "{"),
        ToolArguments(0, "}"),
        ToolCallEnd(0),
        ToolCallStart(1, "g"),
    ]
    more = [ToolArguments(1, "{}"), ToolCallEnd(1)]
    opening, first, second, end = await choices(
        Said(Increment(0, [*parts], [1]), Increment(0, [*more], [2], finish="tool_calls"))
    )
    assert opening["delta"] == {"role": "assistant", "content": ""}
    delta = first["delta"]
    assert (delta["reasoning_content"], delta["content"]) == ("hmm", "So")
    told = [(call["index"], call["type"], call["function"]) for call in delta["tool_calls"]]
    assert told == [
        (0, "function", {"name": "f", "arguments": "{}"}),
        (1, "function", {"name": "g", "arguments": ""}),
    ]
    assert second["delta"] == {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


async def test_an_increment_that_says_nothing_sends_nothing_unless_it_has_logprobs() -> None:
    silent = Increment(0, [], [65], [{65: Logprob(-0.5, 1)}])
    end = Increment(0, [Text("A")], [66], [{66: Logprob(float("-inf"), 2)}], finish="stop_sequence")
    assert len(await choices(Said(silent, end))) == 3  # the role, the text, the end
    _, first, second, last = await choices(Said(silent, end), logprobs=True)
    assert first["delta"] == {} and [entry["token"] for entry in first["logprobs"]["content"]] == ["A"]
    assert second["logprobs"]["content"][0]["logprob"] == -9999.0
    assert last["finish_reason"] == "stop" and last["logprobs"] is None


def test_a_whole_answer_keeps_reasoning_apart_and_has_no_content_where_it_only_calls() -> None:
    said = Reply(0, reasoning="hm", tool_calls=[ToolCall("f", '{"a": 1}')], finish="tool_calls")
    [choice] = reply().whole([said], Usage())["choices"]
    message = choice["message"]
    assert message["content"] is None and message["reasoning_content"] == "hm" and message["refusal"] is None
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert reply().whole([Reply(0)], Usage())["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
    }
