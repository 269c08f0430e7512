from __future__ import annotations

from typing import Any

from octavo.engine.outputs import Logprob
from octavo.server.openai.logprobs import ChatLogprobs, TextLogprobs, mean_logprob

PIECES = {1: b" Hi", 2: "é".encode()[:1], 3: "é".encode()[1:], 4: b"<end>"}
POSITION = {1: Logprob(-2.0, 3), 2: Logprob(-0.1, 1), 3: Logprob(-0.5, 2)}


class Spelling:
    def __init__(self, strips_leading_space: bool = False) -> None:
        self.strips_leading_space = strips_leading_space

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def pieces(self, skip_special_tokens: bool) -> dict[int, bytes]:
        return {**PIECES, **({4: b""} if skip_special_tokens else {})}


def spelling(**settings: Any) -> Any:
    return Spelling(**settings)


def test_the_likeliest_are_reported_beside_the_drawn_token_which_need_not_be_one_of_them() -> None:
    found = ChatLogprobs(spelling(), 2).of([POSITION])
    assert found is not None
    [entry] = found["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == (" Hi", -2.0, list(b" Hi"))
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.1, -0.5]
    assert entry["top_logprobs"][0]["bytes"] == [0xC3]
    assert ChatLogprobs(spelling(), None).of([POSITION]) is None


def test_offsets_count_characters_of_the_text_across_chunks() -> None:
    lists = TextLogprobs(spelling(), skip_special_tokens=True)
    certain: Any = [{token: Logprob(0.0, 1)} for token in (1, 2, 3, 4, 1)]
    first, second = lists.of([1, 2], certain[:2]), lists.of([3, 4, 1], certain[2:])
    assert [*first["text_offset"], *second["text_offset"]] == [0, 3, 3, 4, 4]
    assert [*first["tokens"], *second["tokens"]] == [" Hi", "bytes:\\xc3", "bytes:\\xa9", "<end>", " Hi"]


def test_the_space_that_a_vocabulary_puts_before_a_text_is_not_counted() -> None:
    lists = TextLogprobs(spelling(strips_leading_space=True), skip_special_tokens=True)
    prompt = lists.of_prompt([4, 1, 1], [None, *[{1: Logprob(-1.0, 1)}] * 2])
    assert prompt["text_offset"] == [0, 0, 2] and prompt["token_logprobs"] == [None, -1.0, -1.0]


def test_answers_are_ranked_by_log_probability_per_token() -> None:
    assert mean_logprob([1, 2], [POSITION, POSITION]) == (-2.0 - 0.1) / 2
    assert mean_logprob([], None) == 0.0
