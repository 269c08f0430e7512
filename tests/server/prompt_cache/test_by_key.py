"""Totals by key: added up, each tenant's apart, and bounded."""

from __future__ import annotations

from collections import Counter

from octavo.server.prompt_cache.by_key import KeyTotals, UsageByKey
from octavo.server.usage import Usage


def usage(prompt: int, read: int = 0, written: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, read_tokens=read, written_tokens=Counter({1800: written}))


def test_prompts_add_up_under_their_key_and_a_request_counts_once() -> None:
    by_key = UsageByKey()
    by_key.count("alice", "a", usage(10, 4, 6))
    by_key.count("alice", None, usage(3))
    by_key.count("alice", "a", usage(20, 19, 1), is_first=False)
    assert by_key.of("alice") == [("a", KeyTotals(1, 30, 23, 7)), (None, KeyTotals(1, 3, 0, 0))]
    assert by_key.of("bob") == []


def test_of_too_many_keys_that_goes_which_was_not_used_for_longest() -> None:
    by_key = UsageByKey(max_keys=2)
    for key in ("a", "b", "a", "c"):
        by_key.count("alice", key, usage(1))
    assert by_key.of("alice") == [("c", KeyTotals(1, 1)), ("a", KeyTotals(2, 2))]
