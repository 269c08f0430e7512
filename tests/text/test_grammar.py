"""What constraints allow, of byte-level and of byte-fallback vocabularies, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from grammar_walks import allowed_tokens, every_text, follow, wander, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import octavo.text.grammar
from octavo.errors import InvalidRequestError
from octavo.text.grammar import MAX_CACHED_SOURCE, MAX_SOURCE, GrammarCompiler, StructuredOutputsParams
from octavo.text.lark import prepared
from octavo.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", None]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
Constrain = Callable[..., Any]


@pytest.fixture(scope="session")
def tokenizer(case: Any) -> Tokenizer:
    """One of each kind of vocabulary, built from GGUF metadata."""
    return case.ours


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler_for(tokenizer)


def compiler_for(tokenizer: Tokenizer, vocab_size: int | None = None) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size or tokenizer.vocab_size, tokenizer.eos_token_ids)


def constrained(compiler: GrammarCompiler, **fields: Any) -> Any:
    return compiler.compile(StructuredOutputsParams(**fields))


# What may be written ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_drawn_is_json_of_the_schema(compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int) -> None:
    tokens, ended = wander(constrained(compiler, json=PERSON), tokenizer, seed)
    assert ended
    jsonschema.validate(json.loads(written(tokenizer, tokens)), PERSON)


def test_every_choice_can_be_written_and_nothing_else(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    choices = ["yes", "no", "yes, but", " yes", 'a "quote"', "\\", "naïve\n", "😀"]
    assert every_text(constrained(compiler, choice=choices), tokenizer) == set(choices)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=20))
def test_any_text_can_be_a_choice(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str) -> None:
    tokens, ended = wander(constrained(compiler, choice=[text]), tokenizer, seed=0)
    assert ended
    assert written(tokenizer, tokens) == text


def test_a_text_with_one_way_to_go_on_is_written_in_the_models_own_tokens(smollm2_case: Any) -> None:
    tokenizer = smollm2_case.ours
    text = "It is 12 o'clock; naïve people call that <noon>.\n" * 100
    tokens, ended = wander(constrained(compiler_for(tokenizer), choice=[text]), tokenizer, seed=0, max_tokens=10_000)
    assert ended
    assert tokens == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("expression", [r"[a-z]{2,4}-\d{3}", "é|😀|中文", "(a|b)*c", r"<[^>]{1,3}>", "x/y"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_drawn_matches_the_regular_expression(
    compiler: GrammarCompiler, tokenizer: Tokenizer, expression: str, seed: int
) -> None:
    tokens, ended = wander(constrained(compiler, regex=expression), tokenizer, seed, max_tokens=2000)
    assert ended
    assert re.fullmatch(expression, written(tokenizer, tokens))


def test_a_json_object_holds_anything(smollm2_case: Any) -> None:
    tokenizer = smollm2_case.ours
    text = '{"a": [1, -2.5e3, true, null, {"b":"naïve \\n \\u00e9 \\ud83d\\ude00 😀"}],"c": {}}'
    grammar = constrained(compiler_for(tokenizer), json_object=True)
    follow(grammar, tokenizer.encode(text, add_special_tokens=False), tokenizer.vocab_size)
    assert grammar.is_finished


@pytest.mark.parametrize(
    "text", ["[", '"', "{ ", '{"a" ', '{"a":  ', '{"a":1 ', '{"a":"\\ud83d"', '{"a":"\n', "{}}", "{}\n"]
)
def test_no_json_object_begins_so(smollm2_case: Any, text: str) -> None:
    tokenizer = smollm2_case.ours
    grammar = constrained(compiler_for(tokenizer), json_object=True)
    with pytest.raises(AssertionError, match="is not allowed"):
        follow(grammar, [tokenizer.encode(c, add_special_tokens=False)[0] for c in text], tokenizer.vocab_size)


def test_json_cannot_loop_in_white_space(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    numbers = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 30}
    for grammar in (
        constrained(compiler, json=numbers),
        constrained(compiler, grammar=f"start: %json {numbers}".replace("'", '"')),
    ):
        tokens, _ = wander(grammar, tokenizer, seed=1)
        text = written(tokenizer, tokens)
        assert " " in text
        assert not re.search(r"\s\s|\s,|\n", text)


def test_a_grammar_chooses_the_white_space_of_its_own_json(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = {"enum": [[1, 2]], "x-guidance": {"item_separator": ",\n"}}
    [text] = every_text(constrained(compiler, grammar=f"start: %json {json.dumps(schema)}"), tokenizer)
    assert text == "[1,\n2]"


# Tokens ----------------------------------------------------------------------------------------------


def test_special_tokens_do_not_leak_into_strings(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    special = {token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)}
    assert len(special) > 2
    for fields in ({"json": {"type": "string"}}, {"regex": r'"(.|\n)*"'}, {"grammar": r'start: "\"" /(.|\n)*/ "\""'}):
        grammar = constrained(compiler, **fields)
        quote, *_ = [
            token for token in allowed_tokens(grammar, tokenizer.vocab_size) if tokenizer.token_bytes(token) == b'"'
        ]
        grammar.accept(quote)
        allowed = allowed_tokens(grammar, tokenizer.vocab_size)
        assert len(allowed) > 300
        assert not special.intersection(allowed)


def test_the_spelling_of_a_special_token_can_be_written_as_text(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spelling = tokenizer.special_tokens["eos_token"]
    tokens, ended = wander(constrained(compiler, choice=[f"a{spelling}b"]), tokenizer, seed=0)
    assert ended
    assert not any(map(tokenizer.is_special, tokens))
    assert written(tokenizer, tokens) == f"a{spelling}b"


def test_the_end_is_allowed_where_the_grammar_may_end_and_nowhere_else(byte_level: Any) -> None:
    tokenizer = byte_level.ours
    ends = [tokenizer.token_id(name) for name in ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, ends)
    grammar = constrained(compiler, regex="ab?")
    assert not set(ends).intersection(allowed_tokens(grammar, tokenizer.vocab_size))
    grammar.accept(tokenizer.token_id("a"))
    assert not grammar.is_finished
    assert set(allowed_tokens(grammar, tokenizer.vocab_size)) == {tokenizer.token_id("b"), *ends}
    grammar.accept(tokenizer.token_id("b"))
    assert grammar.is_finished
    assert set(allowed_tokens(grammar, tokenizer.vocab_size)) == set(ends)


def test_a_vocabulary_without_an_end_finishes_nevertheless(byte_level: Any) -> None:
    tokenizer = byte_level.ours
    grammar = constrained(GrammarCompiler(tokenizer, tokenizer.vocab_size, ()), choice=["a"])
    follow(grammar, [tokenizer.token_id("a")], tokenizer.vocab_size)
    assert grammar.is_finished
    assert allowed_tokens(grammar, tokenizer.vocab_size) == []


@pytest.mark.parametrize("more", [-300, -1, 0, 1, 31, 32, 500])
def test_only_tokens_that_model_and_tokenizer_have_are_allowed(byte_level: Any, more: int) -> None:
    tokenizer = byte_level.ours
    vocab_size = tokenizer.vocab_size + more
    compiler = compiler_for(tokenizer, vocab_size)
    for grammar in ("start: <[*]>", r"start: /(.|\n)*/"):
        allowed = allowed_tokens(constrained(compiler, grammar=grammar), vocab_size)
        assert allowed
        assert max(allowed) < min(vocab_size, tokenizer.vocab_size)
    assert len(allowed_tokens(constrained(compiler, grammar="start: <[*]>"), vocab_size)) == min(
        vocab_size, tokenizer.vocab_size
    )


@pytest.mark.parametrize(
    ("vocabulary", "name", "spelling"),
    [
        ("byte_level", "<|start_header_id|>", "<|start_header_id|>"),  # special
        ("byte_level", "<tool_call>", "<tool_call>"),  # added, and text like any other
        ("sentencepiece", "<[INST]>", "[INST]"),  # special, without angle brackets of its own
    ],
)
def test_a_grammar_names_tokens_by_their_spelling(
    request: pytest.FixtureRequest, vocabulary: str, name: str, spelling: str
) -> None:
    tokenizer = request.getfixturevalue(vocabulary).ours
    grammar = constrained(compiler_for(tokenizer), grammar=f'start: {name} "x" {name}')
    token, x = tokenizer.token_id(spelling), tokenizer.token_id("x")
    follow(grammar, [token, x, token], tokenizer.vocab_size)
    assert grammar.is_finished


def test_an_added_token_that_is_not_special_is_text(byte_level: Any) -> None:
    tokenizer = byte_level.ours
    lark = 'start: head %json {"const": {"a": 1}}\nhead[lazy]: /(.|\\n)*<tool_call>/'
    grammar = constrained(compiler_for(tokenizer), grammar=lark)
    tokens = tokenizer.encode('Let me see. <tool_call>{"a": 1}', add_special_tokens=False)
    assert tokenizer.token_id("<tool_call>") in tokens
    follow(grammar, tokens, tokenizer.vocab_size)
    assert grammar.is_finished


def test_free_text_ends_at_a_special_token_that_triggers(byte_level: Any) -> None:
    tokenizer = byte_level.ours
    grammar = constrained(compiler_for(tokenizer), grammar='start: text (<|start_header_id|> "!")?\ntext: /(.|\\n)*/')
    text = tokenizer.encode("free text", add_special_tokens=False)
    follow(grammar, [*text, tokenizer.token_id("<|start_header_id|>")], tokenizer.vocab_size)
    assert allowed_tokens(grammar, tokenizer.vocab_size) == [tokenizer.token_id("!")]


def test_names_of_tokens_in_strings_expressions_and_comments_are_left_alone() -> None:
    lark = "\n".join(
        ['start: "<a>" /<a>\\/<a>/ A // <a>', '# <a> "', 'A: "\\"<a>" | <a>', r'b: %json {"const": "<a>\" <a>"}']
    )
    found: list[str] = []
    out = prepared(lark, lambda name: found.append(name) or 7)
    assert found == ["a"]
    assert out.count("<[7]>") == 1
    assert out.splitlines()[:2] == lark.splitlines()[:2]
    assert '"<a>\\" <a>"' in out


# State -----------------------------------------------------------------------------------------------


def test_copies_go_their_own_ways(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    first = constrained(compiler, regex="ab|cd")
    a, c = (tokenizer.token_id(letter) for letter in "ac")
    first.accept(a)
    second = constrained(compiler, regex="ab|cd")
    third = second.copy()
    third.accept(c)
    assert {a, c} <= set(allowed_tokens(second, tokenizer.vocab_size))
    assert allowed_tokens(first, tokenizer.vocab_size) == [tokenizer.token_id("b")]
    assert allowed_tokens(third, tokenizer.vocab_size) == [tokenizer.token_id("d")]


def test_a_token_that_is_not_allowed_is_a_failure_after_which_nothing_is(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = constrained(compiler, regex="a+")
    grammar.accept(tokenizer.token_id("b"))
    assert grammar.failure is not None
    assert not grammar.is_finished
    assert allowed_tokens(grammar, tokenizer.vocab_size) == []


def test_a_grammar_too_ambiguous_to_parse_fails_instead_of_ending(byte_level: Any) -> None:
    tokenizer = byte_level.ours
    grammar = constrained(compiler_for(tokenizer), grammar="start: " + " | ".join(['"aa" "b"'] * 3000))
    tokens, ended = [], False
    while grammar.failure is None and not ended:
        allowed = allowed_tokens(grammar, tokenizer.vocab_size)
        if allowed:
            tokens.append(allowed[0])
            grammar.accept(tokens[-1])
        ended = grammar.is_finished
    assert not ended
    assert "max is 2000" in str(grammar.failure)
    assert allowed_tokens(grammar, tokenizer.vocab_size) == []


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever something is compiled."""
    calls: list[object] = []
    really = octavo.text.grammar._on_deep_stack
    monkeypatch.setattr(octavo.text.grammar, "_on_deep_stack", lambda work: calls.append(work) or really(work))
    return calls


def test_a_constraint_is_compiled_once(byte_level: Any, compiled: list[object]) -> None:
    compiler = compiler_for(byte_level.ours)
    for _ in range(100):
        constrained(compiler, json=PERSON)
        constrained(compiler, json=json.dumps(PERSON))
        constrained(compiler, regex="a")
        constrained(compiler, choice=["a"])
        constrained(compiler, json_object=True)
    assert len(compiled) == 4


def test_what_was_used_longest_ago_is_compiled_again(byte_level: Any, compiled: list[object]) -> None:
    compiler = compiler_for(byte_level.ours)
    constrained(compiler, regex="kept")
    constrained(compiler, regex="forgotten")
    for index in range(9):
        constrained(compiler, regex=f"{index}|" + "a" * (MAX_CACHED_SOURCE // 9))
        constrained(compiler, regex="kept")
    before = len(compiled)
    constrained(compiler, regex="kept")
    assert len(compiled) == before
    constrained(compiler, regex="forgotten")
    assert len(compiled) == before + 1


# What is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{}, {"json": {}, "regex": "a"}, {"json_object": False}, {"json_object": True, "choice": ["a"]}, {"regex": None}],
)
def test_exactly_one_constraint_is_taken(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="exactly one of") as caught:
        StructuredOutputsParams(**fields)
    assert caught.value.param == "structured_outputs"


DEEP: dict[str, Any] = {}
for _ in range(10_000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("json", [], "an object"),
        ("json", "[1]", "an object"),
        ("json", "{", "no JSON"),
        ("json", '{"a":' * 50_000, "no JSON|characters"),
        ("json", {"minimum": float("nan")}, "not JSON"),
        ("json", {"minimum": 10**5000}, "digits"),
        ("json", {1: 2}, "text keys"),
        ("json", {"const": {1, 2}}, "JSON values"),
        ("json", {"const": "\ud800"}, "surrogate"),
        ("json", '{"const": "\\ud800"}', "surrogate"),
        ("json", DEEP, "nested"),
        ("json", {"x-guidance": {"whitespace_flexible": True}}, "x-guidance"),
        ("json", {"const": "a" * MAX_SOURCE}, "at most 131,072"),
        ("json_object", 1, "True or False"),
        ("regex", 5, "text"),
        ("regex", "a" * (MAX_SOURCE + 1), "at most 131,072"),
        ("regex", "\ud800", "surrogate"),
        ("choice", "yes", "list"),
        ("choice", [], "list"),
        ("choice", ["a", ""], "non-empty"),
        ("choice", ["a", 1], "texts"),
        ("choice", ["a", "\ud800"], "surrogate"),
        ("grammar", b"start:", "text"),
    ],
)
def test_what_is_no_constraint_is_refused_by_name(field: str, value: object, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        StructuredOutputsParams(**{field: value})
    assert str(caught.value.param).startswith(f"structured_outputs.{field}")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("json", {"type": "text"}, "text"),
        ("json", {"not": {}}, "not"),
        ("json", {"type": "string", "format": "postcode"}, "postcode"),
        ("json", {"$ref": "http://127.0.0.1/a.json"}, "127.0.0.1"),
        ("json", {"$ref": "#"}, "no answer"),
        ("json", {"properties": {"a": False}, "required": ["a"], "type": "object"}, "nsatisfiable"),
        ("json", {"allOf": [{"anyOf": [{"minimum": i * j} for i in range(10)]} for j in range(12)]}, "too large"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "(", "unclosed"),
        ("regex", r"[^\s\S]", "no answer"),
        ("grammar", "start: nothing", "nothing"),
        ("grammar", "start: start", "no answer"),
        ("grammar", "no rule", "no rule|Expected|expected"),
        ("grammar", "start: <|no_such_token|>", "no_such_token"),
        ("grammar", "start: <[99999999]>", "99999999"),
        ("grammar", 'start: %json {"type": "text"}', "text"),
        ("grammar", "start: " + "(" * 60_000, "nested"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(byte_level: Any, field: str, value: object, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        constrained(compiler_for(byte_level.ours), **{field: value})
    assert caught.value.param == f"structured_outputs.{field}"
    assert len(str(caught.value)) < 600


def test_rules_that_refer_to_each_other_thousands_deep_do_no_harm(byte_level: Any) -> None:
    compiler = compiler_for(byte_level.ours)
    rules = [f"a{i}: a{i + 1}" for i in range(8000)]
    lark = "\n".join(["start: a0", *rules, 'a8000: "x"'])
    definitions = {f"a{i}": {"items": {"items": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(1500)}
    for fields in (
        {"grammar": lark},
        {"grammar": lark.replace("a", "A").replace("stArt", "start")},
        {"json": {"$ref": "#/$defs/a0", "$defs": {**definitions, "a1500": {"type": "null"}}}},
    ):
        assert allowed_tokens(constrained(compiler, **fields), byte_level.ours.vocab_size)


def test_a_schema_is_kept_as_it_was() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    params = StructuredOutputsParams(json=schema)
    schema["type"] = "string"
    assert json.loads(str(params.json))["type"] == "object"
    assert dataclasses.replace(params) == params == StructuredOutputsParams(json=str(params.json))
    assert hash(params) == hash(dataclasses.replace(params))
