"""The scanner knows where JSON ends, and where it stops being JSON, as json.loads does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.tools.json_scan import JsonScanner, Status

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = st.lists(VALUES) | st.dictionaries(st.text(), VALUES)


def scanned(text: str, size: int) -> tuple[int, Status]:
    """Where reading ends, fed in pieces of ``size``."""
    scanner = JsonScanner()
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        at, status = scanner.feed(piece)
        if status is not Status.MORE:
            return start + at, status
    return len(text), Status.MORE


def is_json(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict | list)
    except ValueError:
        return False


@given(CONTAINERS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 9))
def test_a_value_ends_where_it_ends(value: Any, indent: int | None, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert scanned(text + "]} x", size) == (len(text), Status.DONE)


@given(CONTAINERS)
def test_every_beginning_of_a_value_may_go_on(value: Any) -> None:
    scanner = JsonScanner()
    for character in json.dumps(value)[:-1]:
        assert scanner.feed(character) == (1, Status.MORE)


@given(st.lists(st.sampled_from([*'{}[]",:\\ \n0-+.eE1aué', "true", "null", '"a"', "1.5"]), max_size=9).map("".join))
def test_done_means_json_and_json_means_done(text: str) -> None:
    text = "[" + text
    for end in range(1, len(text) + 1):
        at, status = scanned(text[:end], 2)
        ends_here = is_json(text[:end]) and not text[end - 1].isspace()
        assert (status is Status.DONE and at == end) == ends_here, text[:end]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        *(("[01", 2), ("[1.]", 3), ("[tru ", 4), ("[1,]", 3), ('{"a" 1', 5), ("{a", 1), ("[}", 1), ('["\n', 2)),
        *(('["\\x', 3), ('["\\u12g', 6), ("nul", 0), (" [", 0), ("[+1", 1), ("[NaN", 1), ('{"a":1,}', 7)),
        *(('{"a":}', 5), ('{"a":1]', 6), ('{"a":1:', 6)),
    ],
)
def test_what_is_no_json_is_seen_at_its_first_character(text: str, at: int) -> None:
    assert scanned(text, 100) == (at, Status.BAD)
    assert scanned(text, 1) == (at, Status.BAD)
