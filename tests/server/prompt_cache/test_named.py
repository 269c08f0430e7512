"""What the store of named caches keeps to."""

from __future__ import annotations

from array import array

import pytest

from octavo.server.errors import ApiError
from octavo.server.prompt_cache.named import Content, NamedCache, NamedCaches


def cache(tenant: str = "one", salt: bytes = b"", expires: float = 100.0) -> NamedCache:
    return NamedCache(tenant, salt, "model", None, Content(), array("i", range(10)), 0.0, expires, expires)


def test_room_that_was_reserved_and_not_taken_is_given_back() -> None:
    caches = NamedCaches(lambda: 0.0, max_caches=1, max_tokens=10)
    with pytest.raises(ZeroDivisionError), caches.reserved("one", 10):
        with pytest.raises(ApiError, match="1 of 1 are in use"), caches.reserved("one", 0):
            raise AssertionError
        raise ZeroDivisionError
    with caches.reserved("one", 10) as add:
        add(cache())
    assert len(caches.of("one")) == 1


def test_tokens_that_are_reserved_are_in_use() -> None:
    caches = NamedCaches(lambda: 0.0, max_caches=5, max_tokens=10)
    with caches.reserved("one", 6), pytest.raises(ApiError, match=r"have 5 tokens.* have 10, of which 6 are in use"):
        caches.reserved("one", 5).__enter__()


def test_caches_expire_though_nobody_asks_for_them_and_not_at_an_end_that_was_put_off() -> None:
    now = 0.0
    caches = NamedCaches(lambda: now, max_caches=5, max_tokens=100)
    kept, gone = cache("one"), cache("two")
    for each in (kept, gone):
        with caches.reserved(each.tenant, 10) as add:
            add(each)
    caches.set_end(kept, 200.0, 200.0)
    now = 100.0
    assert caches.of("three") == []
    assert set(caches._shelves) == {"one"}
    now = 200.0
    assert caches.of("one") == [] and caches._shelves == {}


def test_an_end_that_is_changed_over_and_over_takes_no_more_memory() -> None:
    caches = NamedCaches(lambda: 0.0, max_caches=5, max_tokens=100)
    each = cache()
    with caches.reserved("one", 10) as add:
        add(each)
    for seconds in range(1, 5000):
        caches.set_end(each, float(seconds), float(seconds))
    assert len(caches._ends) < 1100
    assert caches.of("one") == [each]


def test_tenants_that_share_a_salt_are_known_by_it() -> None:
    caches = NamedCaches(lambda: 0.0, max_caches=5, max_tokens=100)
    alike, other = [cache("one", b"a"), cache("two", b"a")], cache("three", b"b")
    for each in (*alike, other):
        with caches.reserved(each.tenant, 10) as add:
            add(each)
    assert caches.under(b"a") == alike
