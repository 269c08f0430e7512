"""Text comes out as tokens come in: never half a character, and in sum what decoding everything gives."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stop import StopChecker

thorough = settings(max_examples=300)
random_ids = st.lists(st.integers(0, 1300), max_size=40)
byte_tokens = st.lists(st.integers(3, 258), max_size=12)  # of the sentencepiece vocabulary


def stream(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.append((id_,)) for id_ in ids), detokenizer.flush()]


@thorough
@given(ids=random_ids | byte_tokens, skip=st.booleans())
def test_joined_pieces_are_the_one_shot_decoding(case: Any, ids: list[int], skip: bool) -> None:
    pieces = stream(IncrementalDetokenizer(case.ours, (), skip), ids)
    assert "".join(pieces) == case.ours.decode(ids, skip)


@thorough
@given(ids=random_ids, skip=st.booleans())
def test_byte_level_decoding_equals_transformers_on_any_ids(byte_level: Any, ids: list[int], skip: bool) -> None:
    ids = [id_ for id_ in ids if id_ < byte_level.ours.vocab_size]
    assert byte_level.ours.decode(ids, skip) == byte_level.reference.decode(ids, skip_special_tokens=skip)


@thorough
@example(text="\U0010ffff", at=1)
@given(text=st.text(max_size=40), at=st.integers(0, 40))
def test_sentencepiece_decoding_equals_transformers_where_bytes_are_characters(
    sentencepiece: Any, text: str, at: int
) -> None:
    ids = sentencepiece.ours.encode(text)
    assert sentencepiece.ours.decode(ids) == sentencepiece.reference.decode(ids, skip_special_tokens=True)


@thorough
@given(text=st.text(max_size=40))
def test_half_a_character_is_never_shown(case: Any, text: str) -> None:
    if "\ufffd" in text:
        return
    ids = case.ours.encode(text, add_special_tokens=False)
    pieces = stream(IncrementalDetokenizer(case.ours, (), skip_special_tokens=False), ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_character_of_several_tokens_appears_with_its_last(case: Any) -> None:
    ids = case.ours.encode("a𐍈", add_special_tokens=False)
    *before, last, end = stream(IncrementalDetokenizer(case.ours), ids)
    assert "".join(before) == "a"
    assert (last, end) == ("𐍈", "")


def test_bytes_that_never_become_a_character_come_out_at_the_end(sentencepiece: Any) -> None:
    first_byte = sentencepiece.ours.token_id("<0xF0>")
    detokenizer = IncrementalDetokenizer(sentencepiece.ours)
    assert detokenizer.append([first_byte]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_left_out_or_shown(byte_level: Any) -> None:
    ids = byte_level.ours.encode("<|im_start|>hi<|im_end|>")
    assert "".join(stream(IncrementalDetokenizer(byte_level.ours, (), True), ids)) == "hi"
    assert "".join(stream(IncrementalDetokenizer(byte_level.ours, (), False), ids)) == "<|im_start|>hi<|im_end|>"


def test_output_of_sentencepiece_continues_the_prompt(sentencepiece: Any) -> None:
    ours = sentencepiece.ours
    prompt = ours.encode("The capital is")
    output = ours.encode("Paris it is", add_special_tokens=False)  # begins with a word, so with its space
    joined = ours.decode(prompt) + "".join(stream(IncrementalDetokenizer(ours, prompt), output))
    assert joined == ours.decode(prompt + output) == "The capital is Paris it is"


def test_output_of_sentencepiece_after_bos_alone_starts_a_text(sentencepiece: Any) -> None:
    output = sentencepiece.ours.encode("Paris", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(sentencepiece.ours, [sentencepiece.ours.bos_token_id])
    assert "".join(stream(detokenizer, output)) == "Paris"


@given(ids=st.lists(st.integers(-5, 10**9), max_size=10))
def test_ids_outside_the_vocabulary_add_nothing(byte_level: Any, ids: list[int]) -> None:
    outside = [id_ for id_ in ids if not 0 <= id_ < byte_level.ours.vocab_size]
    assert "".join(stream(IncrementalDetokenizer(byte_level.ours), outside)) == byte_level.ours.decode(outside) == ""


def test_a_token_costs_microseconds_however_long_the_text(byte_level: Any) -> None:
    ids = byte_level.ours.encode("The quick brown fox 🦊 jumps over the lazy dog. " * 400)
    detokenizer, checker = IncrementalDetokenizer(byte_level.ours, ids), StopChecker()

    def seconds_each(part: list[int]) -> float:
        best = float("inf")
        for start in range(0, len(part) - 500, 500):  # the best of several stretches: the machine is shared
            begin = time.perf_counter()
            for id_ in part[start : start + 500]:
                checker.feed(detokenizer.append((id_,)))
            best = min(best, (time.perf_counter() - begin) / 500)
        return best

    assert seconds_each(ids) < 10e-6


@pytest.mark.parametrize("stop", [["lazy dog"], ["xyz", "\n\n"]])
def test_stop_string_across_tokens_streams_as_it_reads(case: Any, stop: list[str]) -> None:
    text = "The quick brown fox 🦊 jumps over the lazy dog.\n\nAgain."
    ids = case.ours.encode(text, add_special_tokens=False)
    checker, whole = StopChecker(stop), StopChecker(stop)
    pieces = stream(IncrementalDetokenizer(case.ours), ids)
    streamed = "".join(checker.feed(piece, final=n == len(pieces) - 1).text for n, piece in enumerate(pieces))
    assert streamed == whole.feed(case.ours.decode(ids), final=True).text
    assert not any(string in streamed for string in stop)
