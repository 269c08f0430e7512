"""common_prefix: how much two texts, or two prompts, begin with alike."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """How many characters, or tokens, both begin with; both are of one type.

    By bisection: slices are compared much faster than what is in them, one by one.
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
