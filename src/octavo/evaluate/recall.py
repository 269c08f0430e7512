"""Long-range recall: facts planted at several depths of a text, each asked for at its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]

DEPTHS = tuple((2 * step + 1) / 20 for step in range(10))
"""Where a fact stands, as a share of the text: 0.05 is near its beginning, 0.95 near the question."""

_KEYS = (
    *("Lisbon", "Oslo", "Cairo", "Lima", "Delhi", "Paris", "Tokyo", "Rome", "Quito", "Dublin", "Vienna", "Madrid"),
    *("Berlin", "Moscow", "London", "Sydney", "Boston", "Denver", "Nairobi", "Havana", "Geneva", "Prague", "Athens"),
)


@dataclass(frozen=True, slots=True)
class Question:
    """``tokens``: the question and its answer, to follow the text; the last ``num_answer_tokens`` are the answer."""

    tokens: Int32s
    num_answer_tokens: int


@dataclass(frozen=True, slots=True)
class Haystack:
    """``tokens``: a text with one fact at each of :data:`DEPTHS`; ``questions``: one for each fact, in that order."""

    tokens: Int32s
    questions: tuple[Question, ...]


def haystack(
    encode: Callable[[str], list[int]], prefix: list[int], filler: Int32s, context: int, seed: str
) -> Haystack | None:
    """A text in which, followed by any one of its questions and the answer, there are at most ``context`` tokens.

    Facts are lines such as "The code of Lisbon is 73519.". All keys of a text differ, so every fact is a distractor
    of the others.

    Args:
        encode: the model's tokenizer, without the tokens it puts around a text.
        prefix: what the model wants before any text.
        filler: tokens of other text, as many as ``context`` at least.
        seed: decides keys and codes; the same everywhere.

    Returns:
        ``None`` if facts and question alone are more than that.
    """
    rng = random.Random(seed)
    keys = rng.sample(_KEYS, len(DEPTHS))
    answers = [encode(f" {rng.randrange(10_000, 100_000)}") for _ in keys]
    asked = [encode(f"\nThe code of {key} is") for key in keys]
    end = encode(".\n")
    facts = [ask + answer + end for ask, answer in zip(asked, answers, strict=True)]
    questions = tuple(
        Question(np.array(ask + answer, np.int32), len(answer)) for ask, answer in zip(asked, answers, strict=True)
    )
    taken = len(prefix) + sum(map(len, facts)) + max(len(question.tokens) for question in questions)
    room = context - taken
    if room < 0:
        return None
    tokens = list(prefix)
    before = 0
    for depth, fact in zip(DEPTHS, facts, strict=True):
        upto = int(depth * room)
        tokens += [*filler[before:upto].tolist(), *fact]
        before = upto
    tokens += filler[before:room].tolist()
    return Haystack(np.array(tokens, np.int32), questions)
