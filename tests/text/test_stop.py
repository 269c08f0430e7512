"""Stop strings are found across any boundary and leak nothing (case 3)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.text.stop import StopChecker

letters = st.text(alphabet="ab\n", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


def run(pieces: list[str], stop: list[str], include: bool = False) -> tuple[str, str | None]:
    """Feed all pieces and end; nothing may come after a stop string."""
    checker = StopChecker(stop, include)
    results = [checker.feed(piece, final=index == len(pieces) - 1) for index, piece in enumerate(pieces)]
    matched = [result.stop for result in results if result.stop is not None]
    if matched:
        first = next(index for index, result in enumerate(results) if result.stop is not None)
        assert all(result.text == "" for result in results[first + 1 :])
    return "".join(result.text for result in results), matched[0] if matched else None


def expected(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """By trying every end from the left, and at each the longest stop string."""
    for end in range(1, len(text) + 1):
        hits = [string for string in stop if text[:end].endswith(string)]
        if hits:
            hit = max(hits, key=len)
            return (text[:end] if include else text[: end - len(hit)]), hit
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@settings(max_examples=500)
@example(text="aabaab", stop=["aaba", "ab"], places=[2, 3], include=False)
@given(text=letters, stop=stop_lists, places=st.lists(st.integers(0, 100), max_size=8), include=st.booleans())
def test_any_pieces_give_what_one_piece_gives(text: str, stop: list[str], places: list[int], include: bool) -> None:
    assert run(cut(text, places), stop, include) == run([text], stop, include) == expected(text, stop, include)


@given(text=letters, stop=stop_lists)
def test_nothing_of_a_stop_string_is_shown_before_it_is_decided(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    shown = ""
    for index, character in enumerate(text):
        result = checker.feed(character)
        shown += result.text
        if result.stop is not None:
            break
        held = text[len(shown) : index + 1]
        assert text.startswith(shown)
        assert held == "" or any(string.startswith(held) for string in stop), "held back without a reason"
    assert not any(string in shown for string in stop)


def test_the_string_complete_first_wins() -> None:
    assert run(["abcde"], ["abcde", "bc"]) == ("a", "bc")


def test_of_two_complete_at_once_the_longer_wins() -> None:
    assert run(["xabc"], ["bc", "abc"]) == ("x", "abc")


def test_held_text_is_released_at_the_end() -> None:
    checker = StopChecker(["###"])
    assert checker.feed("a##") == ("a", None)
    assert checker.feed("", final=True) == ("##", None)


def test_stop_string_is_kept_on_request() -> None:
    assert run(["one", " EN", "D two"], ["END"], include=True) == ("one END", "END")


def test_min_tokens_lets_a_stop_string_pass_and_still_sees_one_that_ends_later() -> None:
    checker = StopChecker(["ab"])
    assert checker.feed("xab", stop_allowed=False) == ("xab", None)
    assert checker.feed("ya", stop_allowed=False) == ("y", None)
    assert checker.feed("bz") == ("", "ab")


def test_a_passed_stop_string_may_overlap_the_one_that_counts() -> None:
    checker = StopChecker(["aa"])
    assert checker.feed("aa", stop_allowed=False) == ("a", None)
    assert checker.feed("a") == ("", "aa")


def test_long_repetitive_stop_strings_cost_no_more_than_their_text() -> None:
    checker = StopChecker(["a" * 20_000 + "b"])
    assert "".join(checker.feed("a").text for _ in range(30_000)) == "a" * 10_000


@pytest.mark.parametrize("stop", [[""], ["a", ""], [1], "text"])
def test_bad_stop_lists_are_refused(stop: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="non-empty strings") as caught:
        StopChecker(stop)
    assert caught.value.param == "stop"
