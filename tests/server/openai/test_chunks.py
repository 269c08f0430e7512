from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.openai.chunks import ChunkWriter

HEAD = {"id": "x", "model": 'a "model" with OCTAVO_TEXT'}


def shape(text: str) -> dict[str, Any]:
    return {"delta": {"content": text}, "logprobs": None}


@given(text=st.text(), index=st.integers(0, 2), include_usage=st.booleans())
def test_a_chunk_of_text_is_what_the_whole_choice_would_be(text: str, index: int, include_usage: bool) -> None:
    write = ChunkWriter(HEAD, shape, 3, include_usage=include_usage)
    frame = write.text(index, text)
    assert frame == write.choice({"index": index, **shape(text)})
    assert frame.startswith(b"data: ") and frame.endswith(b"}\n\n") and frame.count(b"\n") == 2
    chunk = json.loads(frame[6:])
    assert chunk["choices"] == [{"index": index, **shape(text)}]
    assert {**chunk, **HEAD} == chunk and ("usage" in chunk) == include_usage


@pytest.mark.parametrize("include_usage", [False, True])
def test_the_usage_comes_without_choices(include_usage: bool) -> None:
    frame = ChunkWriter(HEAD, shape, 1, include_usage=include_usage).usage({"total_tokens": 3})
    assert json.loads(frame[6:]) == {**HEAD, "choices": [], "usage": {"total_tokens": 3}}
