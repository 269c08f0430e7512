"""The grammar of a reply allows what was asked for, in every format, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tool_templates import CALLS, FORMATS, TEMPLATES, TOOLS

from octavo.errors import InvalidRequestError
from octavo.text.chat import ChatTemplate
from octavo.text.grammar import GrammarCompiler, StructuredOutputsParams
from octavo.text.reply_format import ReplyFormat
from octavo.text.tokenizer import Tokenizer
from octavo.text.tools import toolset
from octavo.text.tools.tool_format import Call

OUTPUT = StructuredOutputsParams(json={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
NAMES = [name for name in TEMPLATES if name not in ("plain", "turns")]
ONE, TWO = [Call(*CALLS[0])], [Call(*call) for call in CALLS]


class Walker:
    """Walks texts through the grammars of one template and vocabulary."""

    def __init__(self, name: str, tokenizer: Tokenizer, has_reasoning: bool = False) -> None:
        found = ReplyFormat.of(ChatTemplate(TEMPLATES[name], tokenizer), tokenizer)
        self.reply_format = ReplyFormat(found.tool_format, tokenizer, has_reasoning=has_reasoning)
        self.form = found.tool_format
        self._tokenizer = tokenizer
        self._eos = min(tokenizer.eos_token_ids)
        self._compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)

    def allows(
        self,
        text: str,
        *,
        choice: str = "auto",
        parallel: bool = True,
        output: StructuredOutputsParams | None = None,
        in_reasoning: bool = False,
        tools: list[Any] = TOOLS,
    ) -> bool:
        """Whether ``text`` may be the whole reply."""
        params = self.reply_format.constraint(
            tools=tools, tool_choice=choice, parallel=parallel, output=output, in_reasoning=in_reasoning
        )
        assert params is not None
        grammar = self._compiler.compile(params)
        mask = np.empty(-(-self._tokenizer.vocab_size // 32), np.int32)
        for token in [*self._tokenizer.encode(text, add_special_tokens=False), self._eos]:
            grammar.fill_mask(mask)
            if not mask[token // 32] >> token % 32 & 1:
                return False
            if token != self._eos:
                grammar.accept(token)
        return True


@pytest.fixture(scope="module", params=["with_tokens", "all_special", "byte_level"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Markers as special tokens, as ordinary ones, as no tokens at all."""
    found: Any = request.getfixturevalue(request.param)
    return found if isinstance(found, Tokenizer) else found.ours


@pytest.fixture(scope="module", params=NAMES)
def walker(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Walker:
    return Walker(request.param, tokenizer)


def test_auto_allows_any_text_and_calls_of_the_tools_alone(walker: Walker) -> None:
    assert walker.allows("")
    assert walker.allows('Any text, {"a": [1]} and <b>.\n')
    assert walker.allows(walker.form.write(ONE))
    assert not walker.allows(walker.form.write([Call("weathe", {})]))
    assert not walker.allows(walker.form.write([Call("weather", {"days": 3})]))
    assert not walker.allows(walker.form.write([Call("weather", {"city": "Bern", "more": 1})]))
    assert not walker.allows(walker.form.write(ONE)[:-20])
    if not walker.form.bare:
        assert walker.allows("Let me see.\n" + walker.form.write(ONE))
        assert not walker.allows(walker.form.begin + " I think")


def test_several_calls_are_allowed_if_they_may_be_parallel(walker: Walker) -> None:
    assert walker.allows(walker.form.write(TWO)) == (not walker.form.bare)
    assert walker.allows(walker.form.write(TWO), choice="required") == (not walker.form.bare)
    assert not walker.allows(walker.form.write(TWO), parallel=False)
    assert not walker.allows(walker.form.write(TWO), choice="required", parallel=False)


@pytest.mark.parametrize("parallel", [True, False])
def test_required_allows_nothing_but_calls(walker: Walker, parallel: bool) -> None:
    assert walker.allows(walker.form.write(ONE), choice="required", parallel=parallel)
    assert walker.allows(walker.form.write(TWO[1:]), choice="required", parallel=parallel)
    for text in ("", "Hello", "Hm. " + walker.form.write(ONE), walker.form.write(ONE) + " Well."):
        assert not walker.allows(text, choice="required", parallel=parallel)


def test_a_named_tool_is_the_only_one(walker: Walker) -> None:
    assert walker.allows(walker.form.write(ONE), choice="weather", parallel=False)
    assert not walker.allows(walker.form.write(ONE), choice="now", parallel=False)
    assert walker.allows(walker.form.write(TWO[1:]), choice="now", parallel=False)


def test_none_allows_any_text_but_no_call(walker: Walker) -> None:
    assert walker.allows("Any text, {} and <tool.", choice="none")
    assert not walker.allows(walker.form.write(ONE), choice="none")
    assert not walker.allows(walker.form.begin, choice="none") or walker.form.bare


def test_an_output_is_an_alternative_to_calls(walker: Walker) -> None:
    assert walker.allows('{"n": 3}', output=OUTPUT)
    assert walker.allows(walker.form.write(ONE), output=OUTPUT)
    assert not walker.allows("Hello", output=OUTPUT)
    assert not walker.allows(walker.form.write([Call("other", {})]), output=OUTPUT)
    assert walker.allows('{"n": 3}', output=OUTPUT, choice="none")
    assert not walker.allows(walker.form.write(ONE), output=OUTPUT, choice="none")
    assert not walker.allows('{"n": 3}', output=OUTPUT, choice="required")


@pytest.mark.parametrize(
    ("output", "good", "bad"),
    [
        (StructuredOutputsParams(json_object=True), '{"a": []}', "[1]"),
        (StructuredOutputsParams(regex=r"a/b+|c\/d"), "a/bb", "a/c"),
        (StructuredOutputsParams(regex="a\n/?|[/]"), "a\n", "ab"),
        (StructuredOutputsParams(choice=['y"es', "no"]), 'y"es', "yes"),
        (StructuredOutputsParams(grammar='start: "hi" NAME\nNAME: /[a-z]+/'), "hibob", "hi"),
    ],
)
def test_any_kind_of_output_is_an_alternative(
    with_tokens: Tokenizer, output: StructuredOutputsParams, good: str, bad: str
) -> None:
    for name in ("qwen", "mistral"):
        walker = Walker(name, with_tokens, has_reasoning=True)
        for thought in ("", "<think>\nHm.\n</think>\n\n"):
            assert walker.allows(thought + good, output=output)
            assert not walker.allows(thought + bad, output=output)
            assert walker.allows(thought + walker.form.write(ONE), output=output)
            assert walker.allows(thought + good, output=output, tools=[])


def test_reasoning_is_free_and_comes_first(tokenizer: Tokenizer) -> None:
    walker = Walker("qwen", tokenizer, has_reasoning=True)
    call, thought = walker.form.write(ONE), "Perhaps call something?\n</think>\n\n"
    for choice in ("auto", "required", "weather"):
        assert walker.allows("<think>\n" + thought + call, choice=choice)
        assert walker.allows(call, choice=choice)
        assert walker.allows(thought + call, choice=choice, in_reasoning=True)
        assert not walker.allows("<think>\nNo end. ", choice=choice, in_reasoning=True)
    assert not walker.allows("<think>\nYes.</think>No.", choice="required")
    assert walker.allows("<think>\nYes.</think>No.", choice="none")
    assert not walker.allows("<think>\nYes.</think>" + call, choice="none")
    assert walker.allows(thought + '{"n": 3}', output=OUTPUT, tools=[], in_reasoning=True)


def test_a_marker_of_text_in_reasoning_calls_nothing(byte_level: Any) -> None:
    walker = Walker("qwen", byte_level.ours, has_reasoning=True)
    assert walker.allows("<think>Shall I write <tool_call> now?</think>No.")
    assert not walker.allows("<think>Hm.</think>I write <tool_call> now.")


def test_nothing_is_constrained_that_need_not_be(with_tokens: Tokenizer) -> None:
    plain = Walker("qwen", with_tokens).reply_format
    thinking = Walker("qwen", with_tokens, has_reasoning=True).reply_format
    asked: dict[str, Any] = {"tools": [], "tool_choice": "auto", "parallel": True, "in_reasoning": False}
    assert plain.constraint(**asked, output=None) is None
    assert thinking.constraint(**asked, output=None) is None
    assert plain.constraint(**asked, output=OUTPUT) is OUTPUT


@pytest.mark.parametrize(
    ("function", "param"),
    [
        ({"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}, "tools[1].function.parameters"),
        ({"name": "f", "parameters": {"type": "string"}}, "tools[1].function.parameters"),
        ({"name": "f", "parameters": [1]}, "tools[1].function.parameters"),
        ({"name": "f", "parameters": {"properties": {"a": {"pattern": "(?=a)"}}}}, "tools[1].function.parameters"),
        ({"name": "f", "parameters": {"properties": {"a": {"const": float("nan")}}}}, "tools[1].function.parameters"),
        ({"name": "weather"}, "tools[1].function.name"),
        ({"name": "a b"}, "tools[1].function.name"),
        ({"name": "\ud800"}, "tools[1].function.name"),
        ({"name": 3}, "tools[1].function.name"),
        ({}, "tools[1].function.name"),
        ("f", "tools[1].function"),
    ],
)
def test_a_tool_that_cannot_be_enforced_is_refused_by_name(with_tokens: Tokenizer, function: Any, param: str) -> None:
    tools = [TOOLS[0], {"type": "function", "function": function}]
    with pytest.raises(InvalidRequestError) as caught:
        Walker("qwen", with_tokens).allows("", tools=tools)
    assert caught.value.param == param


@pytest.mark.parametrize("name", NAMES)
def test_what_no_grammar_can_follow_holds_a_call_to_nothing_unless_it_is_strict(
    with_tokens: Tokenizer, name: str
) -> None:
    walker = Walker(name, with_tokens)
    parameters = {"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for output in (None, OUTPUT):
        allows = {"tools": tools, "choice": "auto", "output": output}
        assert walker.allows(walker.form.write([Call("f", {"a": [1, 1]})]), **allows)
        assert not walker.allows(walker.form.write([Call("f", {"a": 1})]), **allows)


def test_tools_that_are_not_called_need_no_grammar(with_tokens: Tokenizer) -> None:
    walker = Walker("qwen", with_tokens)
    tools = [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]
    assert walker.allows("Hi.", tools=tools, choice="none")
    assert walker.allows(walker.form.write(ONE), tools=tools, choice="weather")


def test_a_tool_that_is_not_there_cannot_be_chosen(with_tokens: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="'weather', 'weather_week', 'now'") as caught:
        Walker("qwen", with_tokens).allows("", choice="wether")
    assert caught.value.param == "tool_choice"


def test_tools_too_large_for_a_grammar_are_refused_as_such(with_tokens: Tokenizer) -> None:
    many = [
        {"type": "function", "function": {"name": f"f{at}", "parameters": {"properties": {"a" * 999: {}}}}}
        for at in range(140)
    ]
    with pytest.raises(InvalidRequestError, match="131,072") as caught:
        Walker("qwen", with_tokens).allows("", tools=many)
    assert caught.value.param == "tools"


def test_schemas_that_no_grammar_can_hold_are_not_even_read(
    with_tokens: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    monkeypatch.setattr(toolset, "schema_problem", lambda schema: looked_at.append(schema))
    properties = {"a" * 999: {}}
    cases: list[tuple[list[Any], str]] = [
        ([{"type": "object", "description": "d" * 140_000}], "tools[0].function.parameters"),
        ([{"type": "object", "properties": properties}] * 500, "tools"),
    ]
    for schemas, param in cases:
        tools = [
            {"type": "function", "function": {"name": f"f{at}", "parameters": schema}}
            for at, schema in enumerate(schemas)
        ]
        with pytest.raises(InvalidRequestError, match="131,072") as caught:
            Walker("qwen", with_tokens).allows("", tools=tools)
        assert caught.value.param == param
    assert len(looked_at) < 200


def test_special_tokens_are_kept_where_they_are_markers(with_tokens: Tokenizer, all_special: Tokenizer) -> None:
    special = {"mistral", "llama3", "granite", "phi4"}
    for name, form in FORMATS.items():
        reply_format = Walker(name, with_tokens).reply_format
        assert reply_format.skip_special_tokens(False)
        assert reply_format.skip_special_tokens(True) == (form not in special)
        assert not Walker(name, all_special).reply_format.skip_special_tokens(True)
        assert not Walker(name, all_special, has_reasoning=True).reply_format.skip_special_tokens(False)
