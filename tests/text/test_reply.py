"""A reply taken apart: reasoning, text and calls, whatever the pieces are in which it comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.reply import (
    Reasoning,
    ReplyParser,
    ReplyPart,
    Text,
    ToolArguments,
    ToolCallEnd,
    ToolCallStart,
    joined,
)
from octavo.text.tools.detect import FORMATS
from octavo.text.tools.granite import GRANITE
from octavo.text.tools.hermes import HERMES
from octavo.text.tools.llama3 import LLAMA3
from octavo.text.tools.mistral import MISTRAL
from octavo.text.tools.phi4 import PHI4
from octavo.text.tools.tool_format import Call, ToolFormat

ARGUMENTS = '{"city": "Köln }\\"</tool_call>", "days": [1, 2.5e-3, null]}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def parsed(text: str, tool_format: ToolFormat | None = HERMES, *, size: int = 0, **options: Any) -> list[ReplyPart]:
    """The parts of a text that comes in pieces of ``size`` characters, or whole."""
    options = {"reasoning": False, "in_reasoning": False, **options}
    parser = ReplyParser(tool_format=tool_format, **options)
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return joined([part for piece in pieces for part in parser.feed(piece)] + parser.finish())


def called(index: int, name: str, arguments: str) -> list[ReplyPart]:
    return [ToolCallStart(index, name), ToolArguments(index, arguments), ToolCallEnd(index)]


def all_characters(parts: list[ReplyPart]) -> str:
    return "".join(getattr(part, "text", getattr(part, "name", "")) for part in parts)


def test_without_anything_to_look_for_text_passes_as_it_comes() -> None:
    parser = ReplyParser(tool_format=None, reasoning=False)
    assert parser.feed("<tool_call>\n") == [Text("<tool_call>\n")]
    assert parser.feed("") == []
    assert parser.finish() == []


def test_arguments_are_what_the_model_wrote() -> None:
    assert parsed(CALL) == called(0, "weather", ARGUMENTS)


def test_arguments_come_as_they_are_written() -> None:
    parser = ReplyParser(tool_format=HERMES, reasoning=False)
    assert parser.feed('<tool_call>\n{"name": "f", "argu') == []
    assert parser.feed('ments": {"a"') == [ToolCallStart(0, "f"), ToolArguments(0, '{"a"')]
    assert parser.feed(": 1") == [ToolArguments(0, ": 1")]
    assert parser.feed("}}") == [ToolArguments(0, "}"), ToolCallEnd(0)]
    assert parser.feed("\n</tool_call>") + parser.finish() == []


def test_text_around_calls_keeps_its_order_and_loses_the_space_next_to_them() -> None:
    parts = parsed(f"Let me see. \n{CALL}\n{CALL}\nDone.\n")
    first, second = called(0, "weather", ARGUMENTS), called(1, "weather", ARGUMENTS)
    assert parts == [Text("Let me see."), *first, *second, Text("\nDone.\n")]


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_what_a_format_writes_it_reads(tool_format: ToolFormat) -> None:
    calls = [Call("weather", {"city": 'Köln "}]"', "days": 3}), Call("now", {}), Call("a.b-c", {"x": [{"name": "y"}]})]
    calls = calls[:1] if tool_format.bare else calls
    expected = [part for at, call in enumerate(calls) for part in called(at, call.name, json_of(call.arguments))]
    assert parsed(tool_format.write(calls), tool_format) == expected


def json_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "tool_format", "expected"),
    [
        # Ids, and a space behind the marker, as templates of Mistral's models have them.
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]',
            MISTRAL,
            [*called(0, "f", '{"a": 1}'), *called(1, "g", "{}")],
        ),
        (
            'Hm.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
            MISTRAL,
            [Text("Hm."), *called(0, "f", '{"a": 1}'), *called(1, "g", "{}")],
        ),
        ('\n<|python_tag|>{"name": "f", "parameters": {"a": 1}}', LLAMA3, called(0, "f", '{"a": 1}')),
        ('{"name": "f", "arguments": {"a": 1}}', LLAMA3, called(0, "f", '{"a": 1}')),
        ('<|tool_call|>{"name": "f", "arguments": {}}<|/tool_call|>', PHI4, called(0, "f", "{}")),
        # The name after the arguments, and keys that mean nothing.
        (
            '<tool_call>{"arguments": {"a": 1}, "n": [{"name": 3}], "name": "f"}</tool_call>',
            HERMES,
            called(0, "f", '{"a": 1}'),
        ),
    ],
)
def test_calls_as_models_vary_them(text: str, tool_format: ToolFormat, expected: list[ReplyPart]) -> None:
    assert parsed(text, tool_format) == expected


@pytest.mark.parametrize(
    ("text", "tool_format"),
    [
        ("<tool_call> hello </tool_call>", HERMES),
        ('<tool_call>{"name": "f"}</tool_call>', HERMES),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', HERMES),
        ('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', HERMES),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', HERMES),
        ('<tool_call>{"name": "f", "name" "arguments": {}}</tool_call>', HERMES),
        ("<tool_call", HERMES),
        ("a < b <tool_cal l>", HERMES),
        ("hello \n", HERMES),
        ('text\n<tool_call>\n{"name": "f", "argu', HERMES),
        ("[TOOL_CALLS]f oo", MISTRAL),
        ("[TOOL_CALLS]f[ARGS]none", MISTRAL),
        ("[TOOL_CALLS][]", MISTRAL),
        ('{"a": 1}', LLAMA3),
        ('{"name": "f", "city": "Bern"}', LLAMA3),
        ('{"name": "f", "parameters": [1]}', LLAMA3),
        ('Call {"name": "f", "parameters": {}}', LLAMA3),
        ("<|python_tag|>search.call(query='x')", LLAMA3),
        ("<|tool_call|>", GRANITE),
    ],
)
def test_what_is_no_call_is_text_as_it_came(text: str, tool_format: ToolFormat) -> None:
    assert parsed(text, tool_format) == [Text(text)]


def test_json_that_is_no_call_streams_where_calls_have_no_marker() -> None:
    parser = ReplyParser(tool_format=LLAMA3, reasoning=False)
    assert parser.feed('{"answer": ') == [Text('{"answer":')]
    assert parser.feed("42}") == [Text(" 42}")]


def test_a_call_cut_off_stands_as_far_as_it_came() -> None:
    assert parsed(CALL[:60]) == called(0, "weather", ARGUMENTS[: 60 - CALL.index(ARGUMENTS)])


def test_a_call_that_goes_wrong_ends_there_and_the_rest_is_text() -> None:
    parts = parsed('<tool_call>{"name": "f", "arguments": {"a": 1,,}}</tool_call> Well.')
    assert parts == [*called(0, "f", '{"a": 1,'), Text(",}} Well.")]


def test_a_marker_inside_a_failed_call_begins_a_call() -> None:
    assert parsed(f"<tool_call>\n{CALL}") == [Text("<tool_call>"), *called(0, "weather", ARGUMENTS)]


def test_reasoning_is_kept_apart_without_the_line_breaks_at_its_edges() -> None:
    parts = parsed(f"<think>\n\nHm.\n\nWell.\n</think>\n\n  Yes.\n{CALL}", reasoning=True)
    assert parts == [Reasoning("Hm.\n\nWell."), Text("  Yes."), *called(0, "weather", ARGUMENTS)]


def test_a_reply_to_a_prompt_that_ends_in_reasoning_begins_there() -> None:
    assert parsed("\nHm.\n</think>\nYes.", None, reasoning=True, in_reasoning=True) == [Reasoning("Hm."), Text("Yes.")]


@pytest.mark.parametrize("text", ["<think>\nHm", "<think>Hm\n\n"])
def test_reasoning_that_never_ends_is_reasoning(text: str) -> None:
    assert parsed(text, reasoning=True) == [Reasoning("Hm")]


@pytest.mark.parametrize("text", ["No <think> here.", "<thi", "</think>", " \n"])
def test_markers_elsewhere_are_text(text: str) -> None:
    assert parsed(text, reasoning=True) == [Text(text)]


def test_an_empty_block_of_reasoning_leaves_nothing() -> None:
    assert parsed("<think>\n\n</think>\n\nYes.", reasoning=True) == [Text("Yes.")]


def test_no_call_is_looked_for_in_reasoning() -> None:
    assert parsed(f"<think>{CALL}</think>Yes.", reasoning=True) == [Reasoning(CALL), Text("Yes.")]


SNIPPETS = st.sampled_from(
    (
        *(CALL, "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "f[ARGS]"),
        *("<|tool_call|>", "<|/tool_call|>", "<|python_tag|>", '{"name": "f", ', '"arguments": '),
        *('"parameters": {"a": 1}}', "{}", "[", "]", "}", ", ", " ", "\n", "<", "text", ' "', "\\", "3.", "é👋"),
    )
)
REPLIES = st.lists(SNIPPETS, max_size=8).map("".join)


@given(REPLIES, st.sampled_from(FORMATS), st.booleans(), st.booleans(), st.data())
def test_pieces_of_any_size_give_the_same_parts(
    text: str, tool_format: ToolFormat, reasoning: bool, inside: bool, data: st.DataObject
) -> None:
    whole = parsed(text, tool_format, reasoning=reasoning, in_reasoning=inside)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parser = ReplyParser(tool_format=tool_format, reasoning=reasoning, in_reasoning=inside)
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert joined([part for piece in pieces for part in parser.feed(piece)] + parser.finish()) == whole
    assert parsed(text, tool_format, size=1, reasoning=reasoning, in_reasoning=inside) == whole


@given(REPLIES, st.sampled_from(FORMATS), st.booleans(), st.booleans())
def test_calls_are_well_formed_whatever_the_text(
    text: str, tool_format: ToolFormat, reasoning: bool, inside: bool
) -> None:
    parts = parsed(text, tool_format, reasoning=reasoning, in_reasoning=inside)
    count, is_open = 0, False
    for part in parts:
        if isinstance(part, ToolCallStart):
            assert part.index == count and not is_open and part.name
            is_open = True
        elif isinstance(part, ToolArguments):
            assert part.index == count and is_open and part.text
        elif isinstance(part, ToolCallEnd):
            assert part.index == count and is_open
            count, is_open = count + 1, False
        else:
            assert part.text and not is_open
    assert not is_open


@given(st.text(st.sampled_from('<tool_cal>\n x{}[]"/|'), max_size=40))
def test_text_without_a_call_comes_out_whole(text: str) -> None:
    for tool_format in FORMATS:
        assert all_characters(parsed(text, tool_format)) == text
