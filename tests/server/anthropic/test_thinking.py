"""Thinking over HTTP: the embedded model under a template that lets it reason first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types import Message
from live_server import LiveServer, live_server

from octavo.async_engine import AsyncEngine
from octavo.config import EngineConfig
from octavo.engine.assemble import assemble

TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\\n' }}"
    "{%- else %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
ON = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def thinker(smollm2_gguf: Path) -> Iterator[LiveServer]:
    assembly = assemble(smollm2_gguf, EngineConfig.of({"kv_memory": "64MiB", "max_model_len": 2048, "threads": 2}))
    assembly._template = TEMPLATE
    engine = AsyncEngine.from_assembly(assembly)
    with live_server(engine) as server:
        yield server
    engine.shutdown()


@pytest.fixture
def client(thinker: LiveServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=thinker.url, api_key="none", max_retries=0, timeout=60) as anthropic_client:
        yield anthropic_client


def ask(client: Anthropic, thinker: LiveServer, messages: Any = QUESTION, **fields: Any) -> Message:
    """A message that ends at its first full stop. ``max_tokens`` must leave room for the budget that is never used."""
    fields = {"max_tokens": 1100, "stop_sequences": ["."], **fields}
    return client.messages.create(model=thinker.model, messages=messages, **fields, extra_body={"temperature": 0})


def test_thinking_is_a_block_of_its_own_and_is_switched_by_the_request(client: Anthropic, thinker: LiveServer) -> None:
    for thinking in ({}, {"thinking": ON}, {"thinking": {"type": "adaptive"}}):
        [thought] = ask(client, thinker, **thinking).content
        assert thought.type == "thinking" and thought.thinking and thought.signature == ""
    [said] = ask(client, thinker, thinking={"type": "disabled"}).content
    assert said.type == "text" and said.text


def test_streamed_thinking_is_the_whole_one(client: Anthropic, thinker: LiveServer) -> None:
    fields: Any = {"max_tokens": 1100, "stop_sequences": ["."], "thinking": ON}
    with client.messages.stream(
        model=thinker.model, messages=QUESTION, **fields, extra_body={"temperature": 0}
    ) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
        [streamed] = stream.get_final_message().content
    [whole] = ask(client, thinker, **fields).content
    assert streamed.to_dict() == whole.to_dict()
    assert whole.type == "thinking" and "".join(pieces) == whole.thinking and len(pieces) > 1


def test_thinking_that_is_not_displayed_leaves_its_block_empty(client: Anthropic, thinker: LiveServer) -> None:
    message = ask(client, thinker, thinking={**ON, "display": "omitted"})
    [thought] = message.content
    assert thought.type == "thinking" and thought.thinking == "" and message.usage.output_tokens > 1


def test_thinking_that_is_sent_back_reaches_the_template(client: Anthropic, thinker: LiveServer) -> None:
    def count(*blocks: Any) -> int:
        turns: Any = [
            *QUESTION,
            {"role": "assistant", "content": [*blocks, {"type": "text", "text": "Red."}]},
            *QUESTION,
        ]
        return client.messages.count_tokens(model=thinker.model, messages=turns).input_tokens

    thought = {"type": "thinking", "thinking": "The user wants colours.", "signature": "s"}
    assert count(thought) > count() + 5
    assert count({"type": "redacted_thinking", "data": "xxxx"}) == count()


def test_tokens_of_thinking_are_counted_as_such(client: Anthropic, thinker: LiveServer) -> None:
    usage = ask(client, thinker).usage
    assert usage.output_tokens_details is not None
    assert 0 < usage.output_tokens_details.thinking_tokens <= usage.output_tokens
