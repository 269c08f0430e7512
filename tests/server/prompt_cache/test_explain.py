"""Every token of a prompt has the cause it has: worked out by comparing, beside what is plain to see."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo.server.prompt_cache.entries import Entry, digests
from octavo.server.prompt_cache.explain import Question, beside, covering, explain
from octavo.server.prompt_cache.history import Record

NOW = 100.0
REUSE = ("not_finished", "evicted", "flushed", "differs", "not_seen", "last_token")


def record(prompt: list[int], *outputs: list[int], number: int = 1, **more: Any) -> Record:
    answers = [array("i", output) for output in outputs]
    given = {"num_cached": 0, "num_read": 0, "ended": 10.0, **more}
    return Record(f"req_{number}", "t", b"", "/v1/messages", "m", None, array("i", prompt), 5.0, answers, **given)


def causes(
    prompt: list[int],
    hit: int,
    *earlier: Record,
    flushes: Sequence[float] = (),
    live: Sequence[Entry] = (),
    **of: Any,
) -> list[tuple[str, int, int]]:
    question = Question(record(prompt, num_cached=hit, **{"num_read": hit, **of}), earlier, flushes, live, NOW)
    return [(cause.kind, cause.start, cause.end) for cause in explain(question).causes]


def test_a_prompt_that_was_never_sent_was_not_seen() -> None:
    assert causes([1, 2, 3], 0) == [("not_seen", 0, 2), ("last_token", 2, 3)]
    assert causes([1], 0) == [("last_token", 0, 1)]


def test_a_prompt_that_differs_does_so_from_the_first_token_on_that_does() -> None:
    assert causes([1, 2, 3, 4, 5], 2, record([1, 2, 9, 4, 5])) == [("differs", 2, 4), ("last_token", 4, 5)]


def test_the_closest_prompt_is_the_one_compared_with_and_of_two_the_one_that_differs() -> None:
    far, goes_on, differs = record([1, 7]), record([1, 2, 3]), record([1, 2, 3, 9], number=2)
    question = Question(record([1, 2, 3, 4, 5], num_cached=3), [far, goes_on, differs], (), [], NOW)
    closest = explain(question).closest
    assert closest is not None and (closest.record, closest.num_shared, closest.differs) == (differs, 3, True)


def test_what_goes_on_where_another_ended_is_new_from_there() -> None:
    assert causes([1, 2, 3, 4, 5], 3, record([1, 2, 3])) == [("not_seen", 3, 4), ("last_token", 4, 5)]


def test_of_an_answer_all_but_the_last_token_was_computed() -> None:
    earlier = record([1, 2], [3, 4])
    assert causes([1, 2, 3, 4, 5, 6], 3, earlier) == [("not_seen", 3, 5), ("last_token", 5, 6)]
    assert causes([1, 2, 3, 4, 5, 6], 0, earlier)[0] == ("evicted", 0, 3)


def test_an_answer_that_comes_back_changed_differs_in_the_answer() -> None:
    found = beside(array("i", [1, 2, 3, 9, 9]), record([1, 2], [8], [3, 4, 5]))
    assert (found.output, found.num_shared, found.num_computed, found.differs) == (1, 3, 3, True)
    assert found.tokens.tolist() == [1, 2, 3, 4, 5]


def test_what_was_computed_and_is_not_there_was_evicted_or_flushed_or_is_not_finished() -> None:
    old, new = record([1, 2, 3, 4, 9], ended=10.0), record([1, 2, 9], ended=30.0)
    prompt = [1, 2, 3, 4, 5, 6]
    assert causes(prompt, 1, old)[:2] == [("evicted", 1, 4), ("differs", 4, 5)]
    assert causes(prompt, 1, old, flushes=(20.0,))[:2] == [("flushed", 1, 4), ("differs", 4, 5)]
    assert causes(prompt, 1, new, old, flushes=(20.0,))[:2] == [("evicted", 1, 2), ("flushed", 2, 4)]
    under_way = record(prompt, ended=None, num_cached=None)
    assert causes(prompt, 1, under_way, old) == [("not_finished", 1, 5), ("last_token", 5, 6)]


def test_a_flush_before_it_was_sent_or_after_the_moment_in_question_flushed_nothing_of_it() -> None:
    earlier = record([1, 2, 3], ended=10.0)
    assert causes([1, 2, 3, 4], 0, earlier, flushes=(9.0, NOW + 1))[0] == ("evicted", 0, 3)


def test_what_is_reused_beyond_all_that_is_remembered_is_compared_with_nothing() -> None:
    question = Question(record([1, 2, 3, 4, 5], num_cached=3, num_read=3), [record([1, 9])], (), [], NOW)
    found = explain(question)
    assert found.closest is None and found.causes[0][:3] == ("not_seen", 3, 4)


def test_a_request_that_reads_nothing_has_no_other_cause() -> None:
    assert causes([1, 2, 3], 0, record([1, 2, 3]), reads=False) == [("not_read", 0, 2), ("last_token", 2, 3)]


def entry(tokens: list[int], ttl: int = 300) -> Entry:
    ((length, digest),) = digests(array("i", tokens), [len(tokens)])
    return Entry(length, digest, b"", 1, ttl, NOW + ttl)


def test_what_is_reused_but_not_counted_expired_or_is_out_of_reach_or_was_never_kept() -> None:
    earlier, prompt = record([1, 2, 3, 9], num_kept=3, kept_for=300), [1, 2, 3, 4, 5]
    contract = {"by_entries": True, "num_read": 0}
    assert causes(prompt, 3, earlier, **contract)[0] == ("expired", 0, 3)
    assert causes(prompt, 3, earlier, live=[entry([1, 2, 3])], **contract)[0] == ("not_read", 0, 3)
    assert causes(prompt, 3, earlier, flushes=(50.0,), **contract)[0] == ("flushed", 0, 3)
    assert causes(prompt, 3, record([1, 2, 3, 9]), **contract)[0] == ("not_read", 0, 3)
    assert causes(prompt, 3, earlier, by_entries=True, num_read=3)[0] == ("differs", 3, 4)


def test_of_the_past_an_entry_had_expired_if_its_time_was_over_then() -> None:
    earlier = record([1, 2, 3, 9], num_kept=3, kept_for=50)
    asked = record([1, 2, 3, 4], num_cached=3, num_read=0, by_entries=True)
    kinds = {at: explain(Question(asked, [earlier], (), None, at)).causes[0].kind for at in (54.0, 56.0)}
    assert kinds == {54.0: "not_read", 56.0: "expired"}


def test_a_breakpoint_below_the_minimum_is_too_short_to_count() -> None:
    assert causes([1, 2, 3, 4], 3, record([1, 2, 3, 4]), num_short=2) == [("too_short", 0, 2), ("last_token", 3, 4)]


def test_the_entries_that_cover_a_prompt_are_those_of_its_own_tokens() -> None:
    mine, longer, other = entry([1, 2]), entry([1, 2, 3]), entry([9, 2])
    assert covering([longer, other, mine], array("i", [1, 2, 3, 4])) == [mine, longer]
    assert covering([longer], array("i", [1, 2])) == []


def alike(first: list[int], second: list[int]) -> int:
    return max(length for length in range(len(first) + 1) if first[:length] == second[:length])


_TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=8)
_RECORDS = st.builds(
    record,
    _TOKENS,
    st.lists(st.integers(0, 1), max_size=4),
    ended=st.sampled_from([None, 10.0, 60.0]),
)


@given(_TOKENS, st.lists(_RECORDS, max_size=5), st.data())
def test_every_token_that_is_not_reused_has_one_cause_and_the_difference_is_the_first(
    prompt: list[int], earlier: list[Record], data: st.DataObject
) -> None:
    hit = data.draw(st.integers(0, len(prompt) - 1))
    asked = record(prompt, num_cached=hit, num_read=hit)
    found = explain(Question(asked, earlier, (50.0,), [], NOW))
    spans = [(cause.start, cause.end) for cause in found.causes if cause.kind in REUSE]
    assert [token for start, end in spans for token in range(start, end)] == list(range(hit, len(prompt)))
    sent = [[*each.prompt, *each.outputs[0]] for each in earlier]
    shared = [alike(prompt, one) for one in sent]
    longest = max(shared, default=0)
    if found.closest is None:
        assert longest == 0 or longest < hit
    else:
        assert found.closest.num_shared == longest >= hit
        assert found.closest.differs == any(
            length == longest and length < min(len(one), len(prompt)) for length, one in zip(shared, sent, strict=True)
        )
