"""Entries: what can be read, where, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from standing_clock import Clock

from octavo.server.prompt_cache.caching import Breakpoint
from octavo.server.prompt_cache.entries import Entries, digests

SALT, OTHER = b"alice", b"bob"


def mark(num_tokens: int, position: int = 1, ttl: int = 300) -> Breakpoint:
    return Breakpoint(num_tokens, position, ttl)


def length_read(entries: Entries, tokens: list[int], at: Breakpoint, look_back: int = 1, salt: bytes = SALT) -> int:
    entry = entries.longest(salt, tokens, [at], look_back)
    return 0 if entry is None else entry.num_tokens


def test_an_entry_is_read_by_prompts_that_begin_with_its_tokens_and_by_no_other() -> None:
    entries = Entries(Clock())
    entries.write(SALT, [1, 2, 3, 4], [mark(3)], 0)
    assert length_read(entries, [1, 2, 3, 9], mark(3)) == 3
    assert length_read(entries, [1, 2, 9, 4], mark(3)) == 0
    assert length_read(entries, [1, 2], mark(2)) == 0
    assert length_read(entries, [1, 2, 3, 4], mark(3), salt=OTHER) == 0


def test_it_is_read_at_its_own_position_and_fewer_than_look_back_before_a_mark() -> None:
    entries = Entries(Clock())
    entries.write(SALT, [1, 2, 3], [mark(3, position=5)], 0)
    tokens = [1, 2, 3, 4, 5]
    assert length_read(entries, tokens, mark(5, position=24), 20) == 3
    assert length_read(entries, tokens, mark(5, position=25), 20) == 0
    assert length_read(entries, tokens, mark(5, position=4), 20) == 0
    assert length_read(entries, tokens, mark(2, position=5), 20) == 0


def test_it_lives_from_the_start_of_the_request_that_wrote_or_read_it_last() -> None:
    clock = Clock()
    entries = Entries(clock)
    entries.write(SALT, [1, 2], [mark(2, ttl=300)], started=10)
    clock.now = 309
    entry = entries.longest(SALT, [1, 2], [mark(2)], 1)
    assert entry is not None
    entries.refresh(SALT, entry, started=200)
    clock.now = 499
    assert length_read(entries, [1, 2], mark(2)) == 2
    clock.now = 500
    assert length_read(entries, [1, 2], mark(2)) == 0


def test_writing_what_lives_prolongs_it_and_never_shortens_it() -> None:
    clock = Clock()
    entries = Entries(clock)
    entries.write(SALT, [1, 2], [mark(2, ttl=3600)], started=0)
    entries.write(SALT, [1, 2], [mark(2, ttl=300)], started=10)
    assert [(entry.ttl, entry.expires) for entry in entries.live(SALT)] == [(3600, 3610)]


def test_of_too_many_those_go_that_were_not_read_for_longest() -> None:
    entries = Entries(Clock(), max_entries=2)
    for token in (1, 2):
        entries.write(SALT, [token], [mark(1)], 0)
    entry = entries.longest(SALT, [1], [mark(1)], 1)
    assert entry is not None
    entries.refresh(SALT, entry, 0)
    entries.write(SALT, [3], [mark(1)], 0)
    assert [length_read(entries, [token], mark(1)) for token in (1, 2, 3)] == [1, 0, 1]


@given(st.lists(st.integers(0, 5), max_size=30), st.sets(st.integers(0, 40)))
def test_digests_of_one_pass_are_those_of_each_prefix(tokens: list[int], lengths: set[int]) -> None:
    found = dict(digests(tokens, lengths))
    assert found == {length: dict(digests(tokens[:length], [length]))[length] for length in found}
    assert set(found) == {length for length in lengths if length <= len(tokens)}


_RUNS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(1, 6), st.sampled_from([5, 60])),
    max_size=12,
)


@given(_RUNS, st.lists(st.integers(0, 1), min_size=1, max_size=6), st.floats(0, 100))
def test_the_longest_is_the_longest_of_all_that_live(
    written: list[tuple[list[int], int, int]], asked: list[int], now: float
) -> None:
    clock = Clock()
    entries = Entries(clock)
    alive: dict[tuple[int, ...], float] = {}
    for tokens, length, ttl in written:
        name = tuple(tokens[:length])
        entries.write(SALT, tokens, [mark(length, ttl=ttl)], clock.now)
        if length <= len(tokens):
            alive[name] = max(alive.get(name, 0.0), clock.now + ttl)
    clock.now = now
    fitting = [len(name) for name, end in alive.items() if end > now and list(name) == asked[: len(name)]]
    assert length_read(entries, asked, mark(len(asked))) == max(fitting, default=0)


def test_an_entry_of_blocks_is_read_by_prompts_that_have_them_all() -> None:
    """Equal tokens are not enough: a block that goes on is another block."""
    entries = Entries(lambda: 0.0)
    entries.write(SALT, [1, 2, 3], [Breakpoint(2, 1, 300, name=b"one")], 0)
    later = [Breakpoint(3, 1, 300, name=b"another")]
    assert entries.longest(SALT, [1, 2, 3], later, 20, [b"another"]) is None
    entry = entries.longest(SALT, [1, 2, 3], later, 20, [b"one", b"another"])
    assert entry is not None and entry.num_tokens == 2
    entries.write(SALT, [1, 2, 3], [Breakpoint(2, 1, 300, name=b"another")], 0)
    assert len(list(entries.live(SALT))) == 2, "the same tokens under each name"
