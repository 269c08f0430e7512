"""Chat completions as the client gets them: whole, or in chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from octavo.server.answers import Answer, Reply
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.streaming import data_frame
from octavo.server.usage import Usage
from octavo.text.reply_parts import Text


def chat_completion(replies: list[Reply], usage: Usage, body: ChatCompletionRequest, request_id: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [
            {"index": r.index, "message": {"role": "assistant", "content": r.text}, "finish_reason": r.finish}
            for r in replies
        ],
        "usage": usage.openai(),
    }


async def chat_frames(answer: Answer, body: ChatCompletionRequest, request_id: str) -> AsyncIterator[bytes]:
    head = {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": body.model,
    }
    async for news in answer.increments():
        for increment in news:
            text = "".join(part.text for part in increment.parts if isinstance(part, Text))
            choice = {"index": increment.choice, "delta": {"content": text}, "finish_reason": increment.finish}
            yield data_frame({**head, "choices": [choice]})
    yield b"data: [DONE]\n\n"
