"""Chat completions as the client gets them: whole, or in chunks."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from octavo.server.answers import Answer, Increment, Reply
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.chunks import DONE, ChunkWriter
from octavo.server.openai.logprobs import ChatLogprobs
from octavo.server.usage import Usage
from octavo.text.reply_parts import Reasoning, ReplyPart, Text, ToolArguments, ToolCallStart
from octavo.text.tokenizer import Tokenizer

FINISH = {"stop": "stop", "stop_sequence": "stop", "tool_calls": "tool_calls", "length": "length"}


class ChatReply:
    """Tells the answers to one request.

    Args:
        head: the fields that the completion and each of its chunks begin with, ``object`` for a whole one.
    """

    def __init__(self, head: dict[str, Any], body: ChatCompletionRequest, tokenizer: Tokenizer) -> None:
        self._head = head if body.service_tier is None else {**head, "service_tier": "default"}
        self._include_usage = body.include_usage
        self._logprobs = ChatLogprobs(tokenizer, (body.top_logprobs or 0) if body.logprobs else None)
        self._has_logprobs = bool(body.logprobs)
        # Where a call may come, nothing is said of text before there is some: null and "" would both be wrong for one.
        self._opening = {"role": "assistant"} if body.tools else {"role": "assistant", "content": ""}

    def whole(self, replies: Sequence[Reply], usage: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [self._choice(reply) for reply in replies], "usage": usage.openai()}

    async def frames(self, answer: Answer) -> AsyncIterator[bytes]:
        """One frame for each increment that says something; those that came together go together."""
        head = {**self._head, "object": "chat.completion.chunk"}
        write = ChunkWriter(head, _text_choice, answer.num_choices, include_usage=self._include_usage)
        opening = b"".join(
            [write.choice(_choice(index, self._opening, None, None)) for index in range(answer.num_choices)]
        )
        async for news in answer.increments():
            frames = [self._frame(write, increment) for increment in news]
            joined = opening + (frames[0] if len(frames) == 1 else b"".join(frames))
            opening = b""
            if joined:
                yield joined
        yield (write.usage(answer.usage.openai()) if self._include_usage else b"") + DONE

    def _frame(self, write: ChunkWriter, increment: Increment) -> bytes:
        parts = increment.parts
        if increment.finish is None and not self._has_logprobs:
            if not parts:
                return b""
            if len(parts) == 1 and type(parts[0]) is Text:
                return write.text(increment.choice, parts[0].text)
        frame = b""
        if parts or (self._has_logprobs and increment.token_ids):
            logprobs = self._logprobs.of(increment.logprobs)
            frame = write.choice(_choice(increment.choice, _delta(parts), logprobs, None))
        if increment.finish is not None:
            frame += write.choice(_choice(increment.choice, {}, None, FINISH[increment.finish]))
        return frame

    def _choice(self, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text or (None if reply.tool_calls else ""),
            "refusal": None,
        }
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [
                {"id": _call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in reply.tool_calls
            ]
        return {
            "index": reply.index,
            "message": message,
            "logprobs": self._logprobs.of(reply.logprobs),
            "finish_reason": FINISH[reply.finish],
        }


def _text_choice(text: str) -> dict[str, Any]:
    return {"delta": {"content": text}, "logprobs": None, "finish_reason": None}


def _choice(index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _delta(parts: Sequence[ReplyPart]) -> dict[str, Any]:
    """All of one increment. A call's name comes with its id; then come pieces of its arguments."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, Text):
            delta["content"] = delta.get("content", "") + part.text
        elif isinstance(part, Reasoning):
            delta["reasoning_content"] = delta.get("reasoning_content", "") + part.text
        elif isinstance(part, ToolCallStart):
            function = {"name": part.name, "arguments": ""}
            calls[part.index] = {"index": part.index, "id": _call_id(), "type": "function", "function": function}
        elif isinstance(part, ToolArguments):
            call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += part.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
