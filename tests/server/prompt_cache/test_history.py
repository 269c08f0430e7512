"""What is remembered of requests, for how long, and how little."""

from __future__ import annotations

from array import array
from typing import Any

from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.history import History, Record, bytes_of, digits
from octavo.server.requests import ChatRequest
from octavo.text.grammar import StructuredOutputsParams


def record(number: int, tenant: str = "t", tokens: int = 10, **more: Any) -> Record:
    return Record(f"req_{number:x}", tenant, b"s", "/v1/messages", "m", None, array("i", range(tokens)), 0.0, **more)


def history(max_bytes: int = 10**6, max_records: int = 3, **more: int) -> History:
    return History(max_bytes=max_bytes, max_records=max_records, **more)


def kept(shelf: History, tenant: str = "t") -> list[str]:
    return [each.request_id for each in shelf.of(tenant)]


def begun(shelf: History, *records: Record) -> None:
    for each in records:
        shelf.add(each)
        each.num_cached = 0


def test_the_last_requests_are_kept_the_newest_first() -> None:
    shelf = history()
    begun(shelf, *(record(number) for number in range(5)))
    assert kept(shelf) == ["req_4", "req_3", "req_2"]


def test_a_request_is_found_by_every_name_it_has() -> None:
    shelf, one = history(), record(0xABC)
    shelf.add(one)
    names = ("req_abc", "msg_abc", "chatcmpl-abc", "cmpl-abc", "resp_abc")
    assert [shelf.find("t", name) for name in names] == [one] * 5
    assert shelf.find("other", "req_abc") is None and shelf.find(None, "req_abc") is one
    assert shelf.find("t", "abc") is None and shelf.find("t", "req_abcd") is None


def test_of_a_request_with_several_prompts_all_are_kept_and_the_first_is_found() -> None:
    shelf, prompts = history(max_records=10), [record(1, tokens=size) for size in (1, 2, 3)]
    begun(shelf, *prompts)
    assert list(shelf.of("t")) == prompts[::-1]
    assert shelf.find("t", "cmpl-1") is prompts[0]


def test_a_request_that_never_began_leaves_nothing() -> None:
    shelf, one = history(), record(1)
    shelf.add(one)
    shelf.end(one, 1.0)
    assert kept(shelf) == [] and shelf._shelves == {} and one.ended == 1.0


def test_a_request_that_was_broken_off_is_kept_with_what_was_computed_of_it() -> None:
    shelf, one = history(), record(1, outputs=[array("i")])
    begun(shelf, one)
    one.outputs[0].extend([5, 6])
    shelf.end(one, 1.0)
    found = shelf.find("t", "req_1")
    assert found is one and found.outputs == [array("i", [5, 6])]


def test_bytes_are_bounded_and_an_answer_counts_once_it_has_ended() -> None:
    one, two = record(1, outputs=[array("i")]), record(2)
    shelf = history(max_bytes=one.num_bytes + two.num_bytes + 39)
    begun(shelf, one, two)
    one.outputs[0].extend(range(9))
    shelf.end(two, 1.0)
    assert kept(shelf) == ["req_2", "req_1"]
    shelf.end(one, 1.0)
    assert kept(shelf) == ["req_2", "req_1"]
    three = record(3)
    begun(shelf, three)
    assert kept(shelf) == ["req_3", "req_2"]
    shelf.end(one, 2.0)  # forgotten while it was under way: counted no more
    assert kept(shelf) == ["req_3", "req_2"]


def test_what_is_larger_than_all_of_it_is_not_kept() -> None:
    shelf = history(max_bytes=100)
    shelf.add(record(1))
    assert kept(shelf) == [] and shelf._shelves == {}


def test_tenants_have_bounds_of_their_own_and_the_silent_ones_are_forgotten() -> None:
    shelf = history(max_records=1, max_tenants=2)
    begun(shelf, record(1, "a"), record(2, "b"), record(3, "a"), record(4, "c"))
    assert [kept(shelf, tenant) for tenant in "abc"] == [["req_3"], [], ["req_4"]]
    assert shelf.salts() == {"a": b"s", "c": b"s"}


def test_how_a_request_was_to_be_answered_is_not_kept() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = ChatRequest(
        messages=messages,
        sampling=SamplingParams(logit_bias=dict.fromkeys(range(300), 1.0)),
        output=StructuredOutputsParams(json_object=True),
    )
    one = record(1)
    one.request = asked
    history().add(one)
    assert one.request is not None and one.request.messages is messages
    assert (one.request.sampling, one.request.output) == (SamplingParams(), None)


def test_a_conversation_takes_the_bytes_of_its_texts_and_of_what_they_are_wrapped_in() -> None:
    def size(content: Any) -> int:
        message = {"role": "user", "content": content}
        return bytes_of(ChatRequest(messages=[message], sampling=SamplingParams()))

    assert size("x" * 10_000) - size("") == 10_000
    assert size([{"type": "text", "text": ""}] * 100) - size([]) > 100 * 100


def test_records_before_one_are_those_that_came_before_it() -> None:
    shelf, records = history(max_records=10), [record(number) for number in range(4)]
    begun(shelf, *records)
    assert shelf.before(records[2]) == [records[1], records[0]]
    assert shelf.before(record(9)) == records[::-1]


def test_the_digits_of_a_request_are_what_follows_the_first_separator() -> None:
    assert [digits(name) for name in ("req_1", "chatcmpl-1-2", "msg_1_2", "x")] == ["1", "1-2", "1_2", ""]
