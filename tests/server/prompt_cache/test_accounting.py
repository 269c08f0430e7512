"""Accounting: what a request is told the cache did, against the contract's own formula."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.config import ServerConfig
from octavo.server.prompt_cache.accounting import CacheUse, Figures
from octavo.server.prompt_cache.caching import FIVE_MINUTES, HALF_AN_HOUR, HOUR, Breakpoint, Caching
from octavo.server.prompt_cache.entries import Entries
from octavo.server.prompt_cache.history import Record

ANTHROPIC = Caching(contract="anthropic", look_back=20)
OPENAI = Caching(contract="openai", at_end=HALF_AN_HOUR)


def told(
    entries: Entries,
    num_tokens: int,
    num_reused: int,
    marks: list[Breakpoint],
    caching: Caching = ANTHROPIC,
    config: ServerConfig | None = None,
) -> Figures:
    record = Record("req_1", "t", b"", "/v1/messages", "m", None, array("i", range(num_tokens)), 0.0)
    return CacheUse(entries, config or ServerConfig(), caching, marks, record).settle(num_reused)


@given(st.data())
def test_figures_follow_the_formula_of_the_contract(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 60))
    places = sorted(data.draw(st.sets(st.integers(1, total), max_size=4)))
    hours = data.draw(st.integers(0, len(places)))  # marks of an hour come first
    marks = [Breakpoint(end, i, HOUR if i < hours else FIVE_MINUTES) for i, end in enumerate(places)]
    earlier = data.draw(st.sampled_from([0, *places]))
    reused = data.draw(st.integers(0, total - 1))
    entries = Entries(lambda: 0.0)
    entries.write(b"", range(total), [mark for mark in marks if mark.num_tokens == earlier], 0.0)

    figures = told(entries, total, reused, marks)
    a = min(earlier, reused)
    start = earlier if a == min(earlier, total - 1) else a  # the last token is in the cache, and computed all the same
    b = max([mark.num_tokens for mark in marks if mark.ttl == HOUR and mark.num_tokens > start], default=start)
    c = max([mark.num_tokens for mark in marks if mark.ttl == FIVE_MINUTES and mark.num_tokens > b], default=b)
    assert (figures.read, figures.written[HOUR], figures.written[FIVE_MINUTES]) == (a, b - start, c - b)
    assert figures.read <= reused


def test_no_more_is_reported_than_was_reused_and_what_is_missing_is_written_again() -> None:
    entries = Entries(lambda: 0.0)
    mark = Breakpoint(50, 1, FIVE_MINUTES)
    assert told(entries, 60, 0, [mark]) == Figures(0, {FIVE_MINUTES: 50})  # type: ignore[arg-type]
    assert told(entries, 60, 55, [mark]) == Figures(50)
    assert told(entries, 60, 16, [mark]) == Figures(16, {FIVE_MINUTES: 34})  # type: ignore[arg-type]


def test_without_marks_the_contract_says_nothing_and_the_setting_says_what_was_reused() -> None:
    entries = Entries(lambda: 0.0)
    assert told(entries, 60, 48, []) == Figures(0)
    assert told(entries, 60, 48, [], config=ServerConfig(anthropic_usage="physical")) == Figures(48)


def test_nothing_is_cached_at_breakpoints_that_cover_too_little() -> None:
    entries, config = Entries(lambda: 0.0), ServerConfig(min_cache_tokens=40)
    marks = [Breakpoint(39, 1, FIVE_MINUTES)]
    for reused in (0, 38):
        assert told(entries, 60, reused, marks, config=config) == Figures(0)
    assert list(entries.live(b"")) == []


@pytest.mark.parametrize(
    ("total", "reused", "reported"), [(1023, 1022, 0), (1024, 127, 0), (1024, 1023, 896), (4000, 3999, 3968)]
)
def test_openai_s_own_rounding_is_a_setting(total: int, reused: int, reported: int) -> None:
    marks = [Breakpoint(total, 1, HALF_AN_HOUR)]
    rounded = told(Entries(lambda: 0.0), total, reused, marks, OPENAI, ServerConfig(openai_usage="rounded"))
    exact = told(Entries(lambda: 0.0), total, reused, marks, OPENAI)
    assert (rounded.read, exact.read) == (reported, reused)
    assert rounded.written == exact.written == {HALF_AN_HOUR: total - reused}


def test_what_closes_a_message_is_not_written_for_a_block_that_is_read() -> None:
    """It was followed by another block when it was written, and by nothing now."""
    entries = Entries(lambda: 0.0)
    told(entries, 60, 0, [Breakpoint(40, 1, FIVE_MINUTES, name=b"block")])
    record = Record("req_1", "t", b"", "/v1/messages", "m", None, array("i", range(60)), 0.0)
    marks = [Breakpoint(40, 1, FIVE_MINUTES, name=b"block"), Breakpoint(44, 1, FIVE_MINUTES, name=b"block")]
    assert CacheUse(entries, ServerConfig(), ANTHROPIC, marks, record, None, [b"block"]).settle(59) == Figures(40)


def test_the_engine_holds_on_to_what_was_asked_for_and_to_what_is_read() -> None:
    entries = Entries(lambda: 0.0)
    told(entries, 60, 0, [Breakpoint(20, 1, HOUR)])
    record = Record("req_1", "t", b"", "/v1/messages", "m", None, array("i", range(60)), 0.0)
    marks = [Breakpoint(40, 2, FIVE_MINUTES), Breakpoint(60, 3, HALF_AN_HOUR, is_retained=False)]
    use = CacheUse(entries, ServerConfig(), ANTHROPIC, marks, record)
    assert use.retain == ((40, 300.0), (20, 3600.0))
