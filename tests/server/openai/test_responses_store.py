"""The store: bounded, apart for each tenant, and linear in what it is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.calls import Caller
from octavo.server.errors import ApiError
from octavo.server.openai.responses_store import ResponseStore, StoredResponse

ALICE, BOB = Caller("alice").tenant, Caller("bob").tenant


def response(name: str, parent: str | None = None, text: str = "hi", item: str | None = None) -> StoredResponse:
    body: dict[str, Any] = {"id": name, "previous_response_id": parent, "output": [{"id": f"out-{name}", "text": text}]}
    return StoredResponse.of(body, [{"id": item or f"in-{name}", "text": text}])


def store(max_responses: int = 10, max_bytes: int = 10**6) -> ResponseStore:
    return ResponseStore(max_responses=max_responses, max_bytes=max_bytes)


def names(chain: list[StoredResponse]) -> list[str]:
    return [link.id for link in chain]


def holds(kept: ResponseStore, tenant: str, name: str) -> bool:
    try:
        kept.get(tenant, name)
    except ApiError:
        return False
    return True


def test_a_conversation_comes_back_from_its_beginning() -> None:
    kept = store()
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        kept.put(ALICE, response(name, parent))
    assert names(kept.chain(ALICE, "c")) == ["a", "b", "c"]
    assert names(kept.chain(ALICE, "other")) == ["a", "other"]


def test_another_tenants_response_is_like_one_that_never_was() -> None:
    kept = store()
    kept.put(ALICE, response("hers"))
    kept.put(BOB, response("b"))

    def told(name: str) -> list[tuple[Any, ...]]:
        errors: list[tuple[Any, ...]] = []
        for attempt in (kept.get, kept.delete, kept.chain):
            with pytest.raises(ApiError) as refused:
                attempt(BOB, name)
            error = refused.value
            errors.append((error.kind, error.message.replace(name, "?"), error.param, error.code))
        return errors

    assert told("hers") == told("never")
    assert kept.with_item(BOB, "out-hers") is kept.with_item(BOB, "never") is None
    assert holds(kept, ALICE, "hers")


def test_one_tenants_bounds_are_not_anothers() -> None:
    kept = store(max_responses=2)
    kept.put(ALICE, response("a"))
    for number in range(5):
        kept.put(BOB, response(f"b{number}"))
    assert holds(kept, ALICE, "a")
    assert [holds(kept, BOB, f"b{number}") for number in range(5)] == [False, False, False, True, True]


def test_what_was_gone_on_with_outlives_what_was_not() -> None:
    kept = store(max_responses=3)
    kept.put(ALICE, response("old"))
    kept.put(ALICE, response("idle"))
    kept.chain(ALICE, "old")
    kept.put(ALICE, response("c"))
    kept.put(ALICE, response("d"))
    assert holds(kept, ALICE, "old")
    assert not holds(kept, ALICE, "idle")


def test_a_conversation_that_lost_its_beginning_says_so() -> None:
    kept = store(max_responses=2)
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        kept.put(ALICE, response(name, parent))
    with pytest.raises(ApiError) as refused:
        kept.chain(ALICE, "c")
    error = refused.value
    assert (error.kind.value, error.code, error.param) == (404, "previous_response_not_found", "previous_response_id")
    assert "lost its beginning" in error.message
    assert "'a'" in error.message


def test_a_response_that_is_larger_than_the_store_is_not_kept_and_neither_is_the_rest() -> None:
    kept = store(max_bytes=5_000)
    kept.put(ALICE, response("a"))
    kept.put(ALICE, response("huge", text="x" * 5_000))
    assert not holds(kept, ALICE, "a")
    assert not holds(kept, ALICE, "huge")


def test_a_long_conversation_is_kept_once() -> None:
    """The bytes of n turns are n times those of one, however each goes on with all before it."""
    turns = 200
    kept = store(max_responses=turns, max_bytes=turns * 2_000)
    for number in range(turns):
        parent = f"r{number - 1}" if number else None
        kept.put(ALICE, response(f"r{number}", parent, text="x" * 100))
    assert len(kept.chain(ALICE, f"r{turns - 1}")) == turns


def test_an_item_is_found_as_long_as_any_response_has_it() -> None:
    kept = store()
    kept.put(ALICE, response("a", item="shared"))
    kept.put(ALICE, response("b", item="shared"))
    kept.delete(ALICE, "a")
    found = kept.with_item(ALICE, "shared")
    assert found is not None
    assert found.id == "b"
    kept.delete(ALICE, "b")
    assert kept.with_item(ALICE, "shared") is None


@given(st.lists(st.tuples(st.sampled_from("pdc"), st.sampled_from([ALICE, BOB]), st.integers(0, 9)), max_size=60))
def test_bounds_hold_and_bytes_are_those_of_what_is_there(orders: list[tuple[str, str, int]]) -> None:
    kept = store(max_responses=4, max_bytes=6_000)
    for kind, tenant, number in orders:
        try:
            if kind == "p" and not holds(kept, tenant, f"r{number}"):
                kept.put(tenant, response(f"r{number}", item="shared", text="x" * 100 * number))
            elif kind == "d":
                kept.delete(tenant, f"r{number}")
            else:
                kept.chain(tenant, f"r{number}")
        except ApiError:
            pass
        for shelf in kept._shelves.values():
            assert 0 < len(shelf.responses) <= 4
            assert shelf.num_bytes == sum(each.num_bytes for each in shelf.responses.values()) <= 6_000
            held = sorted((name, item) for name, each in shelf.responses.items() for item in each.item_ids)
            assert held == sorted((name, item) for item, names in shelf.holders.items() for name in names)
