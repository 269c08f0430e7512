"""The rule of sliding windows, against every step that a sequence could take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.windows import blocks_held, first_block, longest_sequence

WINDOWS = st.integers(1, 20) | st.none()


@given(num_computed=st.integers(0, 60), window=WINDOWS, block_size=st.integers(1, 6))
def test_the_first_block_is_that_of_the_first_position_that_the_next_query_sees(num_computed, window, block_size):
    seen = [p for p in range(num_computed + 1) if window is None or p > num_computed - window]
    assert first_block(num_computed, window, block_size) == seen[0] // block_size


@given(num_tokens=st.integers(1, 60), window=WINDOWS, block_size=st.integers(1, 6), max_step_tokens=st.integers(1, 70))
def test_the_most_blocks_held_are_those_of_the_worst_step(num_tokens, window, block_size, max_step_tokens):
    """No step of any length from any position holds more, and one of them holds as many."""
    held = []
    for start in range(num_tokens):
        for end in range(start + 1, min(start + max_step_tokens, num_tokens) + 1):
            positions = [p for p in range(end) if window is None or p > start - window]
            held.append(len({position // block_size for position in positions}))
    assert blocks_held(num_tokens, window, block_size=block_size, max_step_tokens=max_step_tokens) == max(held)


@given(
    num_blocks=st.integers(0, 40),
    windows=st.lists(WINDOWS, min_size=1, max_size=4),
    block_size=st.integers(1, 6),
    max_step_tokens=st.integers(1, 20),
)
def test_the_longest_sequence_is_the_last_that_fits(num_blocks, windows, block_size, max_step_tokens):
    def fits(num_tokens: int) -> bool:
        sizes = {"block_size": block_size, "max_step_tokens": max_step_tokens}
        return sum(blocks_held(num_tokens, window, **sizes) for window in windows) <= num_blocks

    longest = longest_sequence(num_blocks, windows, block_size=block_size, max_step_tokens=max_step_tokens)
    if longest is None:
        assert None not in windows
        assert fits(10_000)
    else:
        assert fits(longest)
        assert not fits(longest + 1)
