"""Reasoning over HTTP: the embedded model under a template that lets it reason, and shows what it once thought."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from live_server import LiveServer, live_server

from octavo.async_engine import AsyncEngine
from octavo.config import EngineConfig
from octavo.engine.assemble import assemble

TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
)
QUESTION: Any = {"role": "user", "content": "Name three colours."}


@pytest.fixture(scope="module")
def thinker(smollm2_gguf: Path) -> Iterator[LiveServer]:
    assembly = assemble(smollm2_gguf, EngineConfig.of({"kv_memory": "64MiB", "max_model_len": 1024, "threads": 2}))
    assembly._template = TEMPLATE
    engine = AsyncEngine.from_assembly(assembly)
    with live_server(engine) as server:
        yield server
    engine.shutdown()


@pytest.fixture
def client(thinker: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=thinker.openai_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: openai.OpenAI, thinker: LiveServer, **body: Any) -> Any:
    return client.responses.create(model=thinker.model, **{"temperature": 0, "max_output_tokens": 12, **body})


def test_reasoning_is_an_item_of_its_own_and_is_counted(client: openai.OpenAI, thinker: LiveServer) -> None:
    response = ask(client, thinker, input=[QUESTION])
    (thought,) = response.output
    assert (thought.type, thought.status, thought.summary) == ("reasoning", "incomplete", [])
    assert thought.content[0].text
    assert response.output_text == ""
    assert response.usage.output_tokens_details.reasoning_tokens == response.usage.output_tokens == 12


def test_streamed_reasoning_is_the_whole_one(client: openai.OpenAI, thinker: LiveServer) -> None:
    events = list(ask(client, thinker, input=[QUESTION], stream=True))
    pieces = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    whole = ask(client, thinker, input=[QUESTION]).output[0].content[0].text
    assert "".join(pieces) == whole == events[-1].response.output[0].content[0].text
    assert len(pieces) > 1


@pytest.mark.parametrize(("effort", "kind"), [("none", "message"), ("minimal", "message"), ("high", "reasoning")])
def test_effort_switches_thinking(client: openai.OpenAI, thinker: LiveServer, effort: str, kind: str) -> None:
    response = ask(client, thinker, input=[QUESTION], reasoning={"effort": effort})
    assert [item.type for item in response.output] == [kind]


def test_reasoning_goes_on_with_its_conversation(client: openai.OpenAI, thinker: LiveServer) -> None:
    """By the response's id as by its items; and a conversation without the reasoning is another."""
    first = ask(client, thinker, input=[QUESTION])
    after: Any = {"role": "user", "content": "And three more?"}
    said: Any = {"role": "assistant", "content": "Red."}
    by_id = ask(client, thinker, input=[said, after], previous_response_id=first.id)
    whole = ask(client, thinker, input=[QUESTION, *first.output, said, after])
    without = ask(client, thinker, input=[QUESTION, said, after])
    assert by_id.output[0].content[0].text == whole.output[0].content[0].text
    assert by_id.usage.input_tokens == whole.usage.input_tokens > without.usage.input_tokens
