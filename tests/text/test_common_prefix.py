"""What two texts, or two prompts, begin with alike."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from octavo.text.common_prefix import common_prefix


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_it_is_as_long_as_both_are_alike_be_they_tokens_or_a_text(first: list[int], second: list[int]) -> None:
    shared = common_prefix(array("i", first), array("i", second))
    assert first[:shared] == second[:shared]
    assert shared in (len(first), len(second)) or first[shared] != second[shared]
    assert common_prefix("".join(map(str, first)), "".join(map(str, second))) == shared
