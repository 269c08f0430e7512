"""The text: read whole or refused, and cut into whole windows that begin as the model wants texts to begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.evaluate import text as texts
from octavo.evaluate.text import Text, Windows, default_text, read_text

BOS = 99


def tokenizer(bos: int | None) -> Any:
    """One token a character."""

    def encode(text: str) -> list[int]:
        return [*([] if bos is None else [bos]), *map(ord, text)]

    return SimpleNamespace(encode=encode, bos_token_id=bos)


def test_the_default_text_is_english_and_the_same_each_time() -> None:
    text = default_text()
    assert len(text.content) > 400_000
    assert text == default_text()
    assert " the " in text.content


def test_windows_follow_each_other_and_the_rest_is_dropped() -> None:
    windows = Windows(Text("t", "abcdefgh"), tokenizer(None)).cut(3, 100)
    assert [window.tolist() for window in windows] == [[97, 98, 99], [100, 101, 102]]


def test_every_window_begins_with_bos_where_the_model_wants_it() -> None:
    windows = Windows(Text("t", "abcd"), tokenizer(BOS)).cut(3, 100)
    assert [window.tolist() for window in windows] == [[BOS, 97, 98], [BOS, 99, 100]]


@pytest.mark.parametrize(("most", "count"), [(1, 1), (3, 1), (5, 1), (6, 2), (100, 2)])
def test_no_more_tokens_are_taken_than_asked_for_but_one_window(most: int, count: int) -> None:
    assert len(Windows(Text("t", "abcdefgh"), tokenizer(None)).cut(3, most)) == count


def test_a_text_that_is_too_short_says_how_long_it_is_and_for_what() -> None:
    windows = Windows(Text("short.txt", "a" * 40), tokenizer(None))
    windows.check([16, 40])
    with pytest.raises(ConfigError, match=r"'short.txt' has 40 tokens, too few for a context of 41 or 2,048 tokens"):
        windows.check([16, 41, 2048])


def test_bos_counts_as_part_of_the_context() -> None:
    Windows(Text("t", "a" * 15), tokenizer(BOS)).check([16])


def test_a_file_is_read_as_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße\n".encode())
    assert read_text(tmp_path / "a.txt") == Text("a.txt", "Grüße\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"abc\xff", r"not UTF-8 \(byte 3\)"), (None, "cannot read"), (b"x" * 101, "larger than 100 bytes")],
)
def test_a_file_that_is_no_text_is_refused(
    content: bytes | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_TEXT_BYTES", 100)
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_text(tmp_path / "a.txt")


def test_a_folder_or_an_impossible_name_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path("a\0b")):
        with pytest.raises(ConfigError, match="cannot read"):
            read_text(path)


def test_a_character_cut_by_the_limit_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_TEXT_BYTES", 4)
    (tmp_path / "a.txt").write_bytes("aüü".encode())
    with pytest.raises(ConfigError, match="larger than 4 bytes"):
        read_text(tmp_path / "a.txt")
