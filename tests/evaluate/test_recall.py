"""A haystack holds each fact once, at its depth, and with any question and answer fills its context at most."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.evaluate.recall import DEPTHS, Haystack, haystack

FILLER = np.full(4096, ord("~"), np.int32)


def encode(text: str) -> list[int]:
    return list(map(ord, text))


def planted(context: int, seed: str = "a") -> Haystack:
    made = haystack(encode, [1], FILLER, context, seed)
    assert made is not None
    return made


def text_of(tokens: np.ndarray) -> str:
    return "".join(map(chr, tokens.tolist()))


@pytest.mark.parametrize("context", [512, 1000])
def test_each_fact_stands_at_its_depth_of_the_text(context: int) -> None:
    made = planted(context)
    text = text_of(made.tokens)
    assert text[0] == "\x01"
    filler_before = []
    for question in made.questions:
        fact = text_of(question.tokens) + ".\n"
        assert text.count(fact) == 1
        filler_before.append(text[: text.index(fact)].count("~") / text.count("~"))
    assert filler_before == pytest.approx(DEPTHS, abs=0.01)


@pytest.mark.parametrize("context", [512, 513, 4000])
def test_a_haystack_with_its_longest_question_fills_the_context(context: int) -> None:
    made = planted(context)
    assert len(made.tokens) + max(len(question.tokens) for question in made.questions) == context


def test_an_answer_is_the_end_of_its_question_and_no_two_facts_share_a_key() -> None:
    made = planted(600)
    answers = [text_of(question.tokens[-question.num_answer_tokens :]) for question in made.questions]
    assert all(len(answer) == 6 and answer[0] == " " and answer[1:].isdigit() for answer in answers)
    assert len({text_of(question.tokens[: -question.num_answer_tokens]) for question in made.questions}) == len(DEPTHS)


def test_a_seed_decides_keys_and_codes() -> None:
    assert (planted(600, "a").tokens == planted(600, "a").tokens).all()
    assert text_of(planted(600, "a").questions[0].tokens) != text_of(planted(600, "b").questions[0].tokens)


def test_there_is_no_haystack_where_the_facts_alone_do_not_fit() -> None:
    assert haystack(encode, [1], FILLER, 200, "a") is None
