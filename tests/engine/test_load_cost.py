"""LoadCost: reading beats computing where it was measured to."""

from __future__ import annotations

from octavo.engine.load_cost import LoadCost


def cost(per_token: float, per_block: float) -> tuple[LoadCost, list[float]]:
    now = [0.0]
    return LoadCost(per_token, per_block, clock=lambda: now[0]), now


def test_a_load_is_preferred_where_it_is_quicker():
    found, _ = cost(0.001, 0.008)
    assert found.prefers_load(1, 16) and not found.prefers_load(1, 8)
    assert found.prefers_load(10, 160) and not found.prefers_load(20, 160)


def test_what_was_seen_of_loads_counts_for_a_minute_and_then_the_start_s_figure_again():
    found, now = cost(0.001, 0.008)
    for _ in range(10):
        found.observe(4, seconds=4 * 0.1)
    assert not found.prefers_load(1, 16)
    now[0] = 59.0
    assert not found.prefers_load(1, 16)
    now[0] = 60.0
    assert found.prefers_load(1, 16)


def test_quick_loads_make_up_for_a_slow_one():
    found, _ = cost(0.001, 0.008)
    found.observe(1, seconds=1.0)
    assert not found.prefers_load(1, 16)
    for _ in range(20):
        found.observe(1, seconds=0.001)
    assert found.prefers_load(1, 16)
