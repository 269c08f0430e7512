"""What a request for a chat completion may hold."""

from __future__ import annotations

from typing import Any

from octavo.engine.sampling_params import SamplingParams
from octavo.server.requests import ChatRequest
from octavo.server.validation import Body


class ChatCompletionRequest(Body):
    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    stream: bool = False
    ignore_eos: bool = False

    def chat_request(self) -> ChatRequest:
        sampling = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            ignore_eos=self.ignore_eos,
        )
        return ChatRequest(messages=self.messages, sampling=sampling)
