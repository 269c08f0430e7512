"""A settled cut stays where it is, whatever the text goes on with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.cuts import TokenCuts


def cuts(tokenizer: Any, text: str) -> tuple[TokenCuts, list[int]]:
    encoding = tokenizer.encoding(text, add_special_tokens=False)
    return TokenCuts(text, encoding, encoding.ids, tokenizer), encoding.ids


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("word", ""),
        ("one word", "one"),
        ("one word ", "one"),
        ("one word \n next", "one word"),
        ("one\ttab", ""),
        ("said<|im_end|>", "said<|im_end|>"),
        ("said it<|im_end|>\n", "said it<|im_end|>"),
        ("said<|im_end|>\nmore of it", "said<|im_end|>\nmore of"),
        ("x y" + "z" * 3000, "x"),
    ],
)
def test_settled_is_up_to_a_special_token_or_a_word_before_another(byte_level: Any, text: str, kept: str) -> None:
    found, ids = cuts(byte_level.ours, text)
    assert byte_level.ours.decode(ids[: found.settled(len(text))], skip_special_tokens=False) == kept


def test_before_is_the_last_boundary_at_or_before(byte_level: Any) -> None:
    found, ids = cuts(byte_level.ours, "a𐍈 the")
    assert [found.before(char) for char in range(7)] == [0, 1, len(ids) - 1, *[len(ids) - 1] * 3, len(ids)]


def test_boundary_stays_where_only_special_tokens_follow(byte_level: Any) -> None:
    found, _ = cuts(byte_level.ours, "said<|im_end|>\n<|im_start|>user")
    end = len("said<|im_end|>\n")
    assert found.between_marks(end, [])
    assert found.between_marks(end, ["", "<|im_end|> and more"])
    assert not found.between_marks(end, ["<|im_start|>", "\n"])
    assert not found.between_marks(end - 1, [])
    assert not cuts(byte_level.ours, "said")[0].between_marks(4, [""]), "nothing follows that could be known"


texts = st.text(max_size=12) | st.sampled_from(
    ["th", "e ", " a b ", "it's", "}\n\n", "  ", "12345", "<|im_end|>", "I'r "]
)


@settings(max_examples=150)
@given(text=st.lists(texts, max_size=5).map("".join), at=st.integers(0, 60), other=texts)
def test_no_other_text_changes_a_settled_token(case: Any, text: str, at: int, other: str) -> None:
    at = min(at, len(text))
    found, ids = cuts(case.ours, text)
    settled = found.settled(at)
    assert settled <= found.before(at)
    assert case.ours.encode(text[:at] + other, add_special_tokens=False)[:settled] == ids[:settled]
