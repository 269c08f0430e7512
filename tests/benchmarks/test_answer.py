"""A reply is read from its bytes as they came: however they were cut, and with the time of each."""

from __future__ import annotations

import itertools
import json

import pytest
from benchmarks.peers.errors import PeerError
from benchmarks.serving.answer import events, read
from benchmarks.serving.client import Reply
from hypothesis import given
from hypothesis import strategies as st

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}
FRAMES = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "Où"}}], "usage": None},
    {"choices": [{"delta": {"content": " là"}, "finish_reason": "length"}]},
    {"choices": [], "usage": USAGE},
]


def frame(content: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def chunk(content: bytes) -> bytes:
    return f"{len(content):X}\r\n".encode() + content + b"\r\n"


def streamed(*contents: bytes) -> list[bytes]:
    """Head and chunks, each as it would be sent."""
    return [HEAD + b"Transfer-Encoding: Chunked\r\n\r\n", *map(chunk, contents), b"0\r\n\r\n"]


def reply(pieces: list[bytes]) -> Reply:
    """A reply whose pieces came a second apart, the first of them one second after the request."""
    return Reply(0, 100.0, [(101.0 + number, piece) for number, piece in enumerate(pieces)])


WHOLE = streamed(*map(frame, FRAMES), b"data: [DONE]\n\n")


def test_text_counts_and_times_are_read() -> None:
    answer = read(reply(WHOLE), 2)
    assert (answer.text, answer.num_frames, answer.num_tokens) == ("Où là", 2, 2)
    assert (answer.num_prompt_tokens, answer.num_cached_tokens) == (7, 5)
    assert answer.first == 3.0  # head, role, and then the first text
    assert answer.seconds == len(WHOLE)


def test_completions_are_read_like_chats() -> None:
    frames = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}], "usage": USAGE}]
    assert read(reply(streamed(*map(frame, frames), b"data:[DONE]\n\n")), 2).text == "ab"


def test_a_body_that_ends_with_the_connection_is_read() -> None:
    pieces = [HEAD + b"\r\n" + frame(FRAMES[1]), frame(FRAMES[3]) + b"data: [DONE]\n\n"]
    answer = read(reply(pieces), 2)
    assert (answer.text, answer.first, answer.seconds) == ("Où", 1.0, 2.0)


@given(st.lists(st.integers(1, len(b"".join(WHOLE)) - 1), max_size=12))
def test_where_the_bytes_are_cut_changes_nothing_but_times(cuts: list[int]) -> None:
    raw = b"".join(WHOLE)
    edges = [0, *sorted(set(cuts)), len(raw)]
    cut = reply([raw[start:end] for start, end in itertools.pairwise(edges)])
    assert [event for _, event in events(cut)] == [event for _, event in events(reply(WHOLE))]
    assert read(cut, 2).text == "Où là"
    assert 1.0 <= read(cut, 2).first <= read(cut, 2).seconds


def test_an_event_has_the_time_of_its_last_byte() -> None:
    first, second = frame(FRAMES[1]), frame(FRAMES[2])
    pieces = [HEAD + b"\r\n" + first + second[:9], second[9:-2], second[-2:]]
    assert [arrived for arrived, _ in events(reply(pieces))] == [101.0, 103.0]


def test_events_of_other_servers_have_names_and_comments() -> None:
    pieces = [HEAD + b"\r\n", b": ping\n\nevent: x\ndata: 1\r\n\r\nid: 3\n\n"]
    assert [event for _, event in events(reply(pieces))] == [b"1"]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([], "did not answer"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"error": "no such model"}'], "400 bad request: .*no such model"),
        (WHOLE[:-2], "cut off: 2 frames, done: False"),
        (streamed(b"data: [DONE]\n\n"), "cut off: 0 frames"),
        (streamed(frame(FRAMES[1]), b"data: [DONE]\n\n"), "usage: {}"),
        (streamed(frame({"error": {"message": "too long"}})), "sent an error: .*too long"),
        (streamed(frame(FRAMES[1]), frame({"choices": [], "usage": {"completion_tokens": 1}})), "cut off"),
    ],
)
def test_what_is_no_answer_is_an_error(pieces: list[bytes], said: str) -> None:
    with pytest.raises(PeerError, match=said):
        read(reply(pieces), 2)


def test_another_length_than_asked_for_is_an_error() -> None:
    with pytest.raises(PeerError, match="asked for 3 tokens, got 2"):
        read(reply(WHOLE), 3)
