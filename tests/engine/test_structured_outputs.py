"""Constrained answers inside the batch: they keep their constraint, and nobody else notices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo import LLM, CompletionOutput, SamplingParams, StructuredOutputsParams
from octavo.engine.engine import Engine
from octavo.engine.shaping import LogitShaping
from octavo.errors import InvalidRequestError
from octavo.text.tokenizer import Tokenizer

MakeEngine = Callable[..., tuple[Engine, "object"]]
PROMPT = "Write down something about Paris as JSON: "
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "people", "rivers"],
    "additionalProperties": False,
}
ONE_OF_MANY = ["yes", "no", "perhaps", "yes, but not today", "naïve 😀"]


@pytest.fixture(scope="module")
def llm(smollm2_gguf: Path) -> Iterator[LLM]:
    with LLM(smollm2_gguf, kv_memory="64MiB", max_model_len=1024) as llm:
        yield llm


def constrained(
    temperature: float = 0.0, max_tokens: int = 80, *, seed: int = 7, n: int = 1, **fields: Any
) -> SamplingParams:
    outputs = StructuredOutputsParams(**fields)
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed, n=n, structured_outputs=outputs)


def answers(llm: LLM, *requests: tuple[str, SamplingParams]) -> list[list[CompletionOutput]]:
    prompts, params = zip(*requests, strict=True)
    return [output.outputs for output in llm.generate(list(prompts), list(params))]


# What comes out --------------------------------------------------------------------------------------

SCALARS = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 1000},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 6},
        {"type": "string", "pattern": "^[A-Z][a-z]{1,4}$"},
        {"type": "string", "format": "date"},
        {"enum": ["red", "é", 5, None]},
        {"const": {"a": ['"', "\n"]}},
    ]
)


def arrays(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda item, most: {"type": "array", "items": item, "maxItems": most}, items, st.integers(0, 3))


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.dictionaries(st.sampled_from(["a", "b c", 'q"', "é", "long name"]), values, max_size=3)
    return st.builds(
        lambda fields, needed: {
            "type": "object",
            "properties": fields,
            "required": sorted(fields)[:needed],
            "additionalProperties": False,
        },
        names,
        st.integers(0, 3),
    )


SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: arrays(inner) | objects(inner) | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    max_leaves=5,
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SCHEMAS, min_size=4, max_size=4))
def test_every_complete_answer_is_json_of_its_schema(llm: LLM, schemas: list[dict[str, Any]]) -> None:
    asked = [(schema, temperature) for schema in schemas for temperature in (0.0, 1.5)]
    complete = 0
    for (schema, _), [answer] in zip(
        asked, answers(llm, *[(PROMPT, constrained(t, 60, json=s)) for s, t in asked]), strict=True
    ):
        assert answer.finish_reason in ("stop", "length")
        if answer.finish_reason == "stop":
            complete += 1
            jsonschema.validate(json.loads(answer.text), schema)
    assert complete, "none of them got to its end"


def test_choices_of_one_request_each_have_a_state_of_their_own(llm: LLM) -> None:
    [outputs] = answers(llm, (PROMPT, constrained(1.5, n=6, json=CITY)))
    assert len({output.text for output in outputs}) > 1
    for output in outputs:
        assert output.finish_reason == "stop"
        jsonschema.validate(json.loads(output.text), CITY)


def test_the_answer_is_one_of_the_choices_whatever_the_model_would_say(llm: LLM) -> None:
    pushed = llm.tokenizer.encode("perhaps")[0]
    params = [constrained(t, choice=ONE_OF_MANY, seed=seed) for t in (0.0, 5.0, 100.0) for seed in range(8)]
    outputs = [output for [output] in answers(llm, *[(PROMPT, each) for each in params])]
    assert {output.finish_reason for output in outputs} == {"stop"}
    assert {output.text for output in outputs} <= set(ONE_OF_MANY)
    assert len({output.text for output in outputs}) > 2
    biased = SamplingParams(
        max_tokens=20, logit_bias={pushed: 100.0}, structured_outputs=StructuredOutputsParams(choice=ONE_OF_MANY)
    )
    [[output]] = answers(llm, (PROMPT, biased))
    assert output.text == "perhaps"


def test_an_answer_whose_grammar_is_complete_ends_without_an_end_token(llm: LLM) -> None:
    [[output]] = answers(llm, (PROMPT, constrained(1.5, 20, regex="[0-9]{3}")))
    assert re.fullmatch("[0-9]{3}", output.text)
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert not llm.engine.intake.eos_token_ids.intersection(output.token_ids)


def test_an_answer_that_is_complete_at_its_last_token_was_not_cut_off(llm: LLM) -> None:
    tokens = len(llm.tokenizer.encode("perhaps"))
    [[output]] = answers(llm, (PROMPT, constrained(max_tokens=tokens, choice=["perhaps"])))
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("perhaps", "stop", tokens)


def test_an_answer_that_may_go_on_ends_by_an_end_token(llm: LLM) -> None:
    ends = SamplingParams(
        max_tokens=20,
        logit_bias=dict.fromkeys(llm.engine.intake.eos_token_ids, 100.0),
        structured_outputs=StructuredOutputsParams(regex="[a-z]{2}[a-z]*"),
    )
    [[output]] = answers(llm, (PROMPT, ends))
    assert output.finish_reason == "stop"
    assert re.fullmatch("[a-z]{2}[a-z]*", output.text)
    assert output.token_ids[-1] in llm.engine.intake.eos_token_ids


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 11])
def test_an_answer_cut_off_at_its_length_begins_as_a_whole_one(llm: LLM, max_tokens: int) -> None:
    whole = {"text": 'A long "quoted"\ntext about Paris', "numbers": list(range(10))}
    [[output]] = answers(llm, (PROMPT, constrained(1.5, max_tokens, json={"const": whole})))
    assert output.finish_reason == "length"
    compact = re.sub(r"([,:]) ", r"\1", output.text.replace("text about", "text_about"))
    assert json.dumps(whole, separators=(",", ":")).replace("text about", "text_about").startswith(compact)


def test_a_grammar_of_tokens_and_json(llm: LLM) -> None:
    lark = 'start: "call " %json {"type": "boolean"} <|im_end|>'
    [[output]] = answers(llm, (PROMPT, constrained(1.5, grammar=lark)))
    assert output.text in ("call true", "call false")
    assert output.finish_reason == "stop"


def test_a_streamed_answer_is_the_whole_one(llm: LLM) -> None:
    params = constrained(1.0, json=CITY)
    [[whole]] = answers(llm, (PROMPT, params))
    increments = [output.outputs[0] for output in llm.stream(PROMPT, params)]
    assert "".join(part.text for part in increments) == whole.text
    assert increments[-1].finish_reason == "stop"


# Who else is there -----------------------------------------------------------------------------------


def test_constrained_and_free_requests_of_one_batch_answer_as_if_alone(llm: LLM) -> None:
    free = [SamplingParams(temperature=t, max_tokens=24, seed=3, logprobs=2) for t in (0.0, 1.0)]
    bound = [
        constrained(1.5, json=CITY),
        constrained(choice=ONE_OF_MANY),
        constrained(1.0, json_object=True, max_tokens=24),
    ]
    requests = [(f"{PROMPT}{index}", params) for index, params in enumerate([free[0], *bound, free[1], bound[0]])]
    together = answers(llm, *requests)
    llm.reset_prefix_cache()
    alone = [answers(llm, request)[0] for request in reversed(requests)][::-1]
    for one, other in zip(together, alone, strict=True):
        assert [(a.token_ids, a.text, a.logprobs, a.finish_reason) for a in one] == [
            (a.token_ids, a.text, a.logprobs, a.finish_reason) for a in other
        ]


def test_without_a_cache_the_answer_is_the_same(llm: LLM) -> None:
    outputs = StructuredOutputsParams(json=CITY)
    params = [
        SamplingParams(temperature=0, max_tokens=10, structured_outputs=outputs, use_cache=use) for use in (True, False)
    ]
    [[cached], [recomputed]] = [answers(llm, (PROMPT, each))[0] for each in params]
    assert cached.token_ids == recomputed.token_ids


def test_requests_without_a_constraint_have_no_mask() -> None:
    assert not LogitShaping.needed(SamplingParams())
    assert LogitShaping.needed(constrained(json_object=True))


def test_preemption_does_not_change_a_constrained_answer(make_engine: MakeEngine, letter_tokenizer: Tokenizer) -> None:
    params = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=40,
            structured_outputs=StructuredOutputsParams(regex="([a-f][g-m]{2}){6}"),
        )
        for seed in range(6)
    ]
    texts = []
    for blocks in (200, 16):
        engine, _ = make_engine(blocks=blocks, block_size=4, max_model_len=60, tokenizer=letter_tokenizer)
        texts.append(finish(engine, [([1, 2, 3, 4, 5], each) for each in params]))
        assert (engine.stats.num_preemptions > 0) == (blocks == 16)
    assert texts[0] == texts[1]
    for text, reason in texts[0]:
        assert reason == "stop"
        assert re.fullmatch("([a-f][g-m]{2}){6}", text)


def finish(engine: Engine, requests: list[tuple[Any, SamplingParams]]) -> list[tuple[str, str | None]]:
    """Text and finish_reason of each."""
    names = []
    for prompt, params in requests:
        group = engine.intake.accept(prompt, params)
        engine.add(group)
        names.append(group.request_id)
    ended: dict[str, tuple[str, str | None]] = dict.fromkeys(names, ("", None))
    while engine.has_unfinished:
        for output in engine.step():
            [completion] = output.outputs
            ended[output.request_id] = (ended[output.request_id][0] + completion.text, completion.finish_reason)
    engine.check_idle()
    return [ended[name] for name in names]


# What cannot be done ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("json", {"type": "text"}),
        ("json", {"not": {}}),
        ("regex", "("),
        ("grammar", "start: nothing"),
        ("regex", "(?=a)a"),
    ],
)
def test_a_bad_constraint_is_refused_before_anything_is_computed(llm: LLM, field: str, value: object) -> None:
    steps = llm.stats().num_steps
    with pytest.raises(InvalidRequestError) as caught:
        answers(llm, (PROMPT, SamplingParams()), (PROMPT, constrained(**{field: value})))
    assert caught.value.param == f"structured_outputs.{field}"
    assert llm.stats().num_steps == steps
    assert answers(llm, (PROMPT, constrained(choice=["a"])))[0][0].text == "a"


@pytest.mark.parametrize(("field", "value"), [("ignore_eos", True), ("min_tokens", 1)])
def test_what_contradicts_a_constraint_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} cannot be used with structured_outputs") as caught:
        SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True), **{field: value})
    assert caught.value.param == field


def test_constraints_of_another_type_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs"


def test_a_model_without_tokenizer_takes_no_constraint(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError, match="tokenizer") as caught:
        engine.intake.accept([1, 2], constrained(json_object=True))
    assert caught.value.param == "structured_outputs"


def test_allowed_tokens_that_leave_nothing_of_a_grammar_end_the_answer_with_an_error(llm: LLM) -> None:
    [x] = llm.tokenizer.encode("x")
    outputs = StructuredOutputsParams(choice=["yes", "no"])
    [[output], [other]] = answers(
        llm,
        (PROMPT, SamplingParams(max_tokens=5, allowed_token_ids=[x], structured_outputs=outputs)),
        (PROMPT, constrained(choice=["yes"])),
    )
    assert (output.finish_reason, output.stop_reason, output.text) == ("error", "no token may be drawn", "")
    assert other.text == "yes"


def test_allowed_tokens_narrow_a_grammar(llm: LLM) -> None:
    [no] = llm.tokenizer.encode("no")
    outputs = StructuredOutputsParams(choice=["yes", "no"])
    [[output]] = answers(
        llm, (PROMPT, SamplingParams(max_tokens=5, allowed_token_ids=[no], structured_outputs=outputs))
    )
    assert (output.text, output.finish_reason) == ("no", "stop")


def test_a_grammar_that_gets_too_ambiguous_ends_its_answer_alone(llm: LLM) -> None:
    ambiguous = constrained(grammar="start: " + " | ".join(['"aa" "b"'] * 3000))
    [[failed], [other]] = answers(llm, (PROMPT, ambiguous), (PROMPT, constrained(choice=["yes"])))
    assert failed.finish_reason == "error"
    assert "the grammar cannot go on" in str(failed.stop_reason)
    assert (other.text, other.finish_reason) == ("yes", "stop")
    llm.engine.check_idle()
