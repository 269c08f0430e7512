"""A request with tools goes through rendering, grammar, engine and parser, and comes out as calls that fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from octavo import EngineConfig, SamplingParams
from octavo.engine.assemble import Assembly, assemble
from octavo.llm import LLM
from octavo.text.chat import ChatTemplate
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.grammar import StructuredOutputsParams
from octavo.text.reply import ReplyPart, Text, ToolArguments, ToolCallEnd, ToolCallStart, joined

PLACE = {"type": "string", "enum": ["Bern", "Zürich", "New York"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"place": PLACE, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
        "required": ["place", "days"],
    },
    "route": {
        "type": "object",
        "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/place"}, "minItems": 2, "maxItems": 3},
            "fast": {"type": "boolean"},
        },
        "required": ["stops", "fast"],
        "$defs": {"place": PLACE},
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in SCHEMAS]
MESSAGES = [{"role": "user", "content": "How will the weather be in Bern this week? Then plan a trip to Zürich."}]


class Model:
    """The embedded model behind the one thing that a server does with each request."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.llm = LLM.from_assembly(assembly)

    def replies(self, seeds: range, max_tokens: int = 200, **asked: Any) -> list[list[ReplyPart]]:
        """The parts of one reply for each seed, drawn at temperature 1 and parsed token by token."""
        asked = {"tools": TOOLS, "tool_choice": "auto", "parallel": True, "output": None, **asked}
        reply_format = self.assembly.reply_format
        rendered = self.assembly.render(MESSAGES, tools=asked["tools"])
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0,
            structured_outputs=reply_format.constraint(**asked, in_reasoning=rendered.in_reasoning),
            skip_special_tokens=reply_format.skip_special_tokens(bool(asked["tools"])),
        )
        outputs = self.llm.generate(
            [{"prompt_token_ids": rendered.prompt_token_ids}] * len(seeds),
            [replace(params, seed=seed) for seed in seeds],
        )
        replies = []
        for output in outputs:
            parser = reply_format.parser(tools=True, in_reasoning=rendered.in_reasoning)
            detokenizer = IncrementalDetokenizer(self.assembly.tokenizer, rendered.prompt_token_ids)
            pieces = [detokenizer.append([token]) for token in output.outputs[0].token_ids]
            assert "".join(pieces) == output.outputs[0].text
            replies.append(joined([part for piece in pieces for part in parser.feed(piece)] + parser.finish()))
        return replies


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(assemble("smollm2", EngineConfig(kv_memory="64MiB", max_model_len=1024)))
    yield model
    model.llm.close()


def calls_of(parts: list[ReplyPart]) -> list[tuple[str, Any]]:
    """Names and arguments; each call has a beginning, arguments and an end, in that order."""
    calls = []
    for start, arguments, end in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        assert isinstance(start, ToolCallStart)
        assert isinstance(arguments, ToolArguments)
        assert isinstance(end, ToolCallEnd)
        calls.append((start.name, json.loads(arguments.text)))
    return calls


def check_arguments(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_forced_call_always_parses_and_its_arguments_fit(model: Model, name: str) -> None:
    for parts in model.replies(range(6), tool_choice=name, parallel=False):
        calls = calls_of(parts)
        assert [call[0] for call in calls] == [name]
        check_arguments(calls)


def test_a_required_call_is_one_of_the_tools(model: Model) -> None:
    for parts in model.replies(range(6), tool_choice="required", parallel=False):
        calls = calls_of(parts)
        assert len(calls) == 1
        check_arguments(calls)


def test_with_none_there_is_text_alone(model: Model) -> None:
    for parts in model.replies(range(3), max_tokens=40, tool_choice="none"):
        assert all(isinstance(part, Text) for part in parts)


def test_with_auto_and_a_schema_there_is_a_call_or_such_json(model: Model) -> None:
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
    output = StructuredOutputsParams(json={**schema, "additionalProperties": False})
    for parts in model.replies(range(6), output=output, parallel=False):
        if isinstance(parts[0], Text):
            jsonschema.validate(json.loads(parts[0].text), schema)
        else:
            check_arguments(calls_of(parts))


def test_a_prompt_knows_whether_it_ends_in_reasoning(model: Model) -> None:
    tokenizer = model.assembly.tokenizer
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    begins = plain + "{% if add_generation_prompt %}{{ 'assistant: <think>\n' }}{% endif %}"
    closes = plain + "{% if add_generation_prompt %}{{ 'assistant: <think>\n\n</think>\n' }}{% endif %}"
    user = [{"role": "user", "content": "Is <think> a word?"}]
    assert ChatTemplate(begins, tokenizer).render(user).in_reasoning
    assert not ChatTemplate(closes, tokenizer).render(user).in_reasoning
    assert not ChatTemplate(plain, tokenizer).render(user).in_reasoning

    def continued(content: str) -> bool:
        messages = [*user, {"role": "assistant", "content": content}]
        options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
        return ChatTemplate(begins, tokenizer).render(messages, **options).in_reasoning

    assert continued("<think>\nHm")
    assert not continued("<think>\nHm</think>\nYes")
    assert not continued("Yes")


def test_the_embedded_model_is_shown_tools_in_the_documented_form(model: Model) -> None:
    reply_format = model.assembly.reply_format
    assert reply_format.tool_format.name == "hermes"
    assert not reply_format.has_reasoning
    assert reply_format.skip_special_tokens(True)
    assert reply_format is model.assembly.reply_format
