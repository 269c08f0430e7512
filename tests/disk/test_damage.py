"""After damage of any kind the answers are those of a cold run, and what is computed is kept again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from exactness_lab import Ask, Lab, small_lab
from folder_damage import EXISTING, IN_PLACE_OF_SLABS, Damage, flip, slabs, slot_bytes

PROMPTS = 8


@pytest.fixture
def lab() -> Lab:
    return small_lab("hybrid", "generic")


def asks_of(lab: Lab) -> list[Ask]:
    return [
        Ask(number, lab.prompt(50, seed=number % 3) + lab.prompt(5 + 23 * number % 90, seed=number))
        for number in range(PROMPTS)
    ]


def answers(lab: Lab, folder: Path) -> dict[int, int]:
    """Ask all, one after the other; the bits must be right. How many tokens of each were cached."""
    run = lab.start(kv_disk=folder)
    assert run.engine.tier is not None
    for ask in asks_of(lab):
        run.ask(ask)
    lab.assert_exact(run, *asks_of(lab))
    run.engine.close()
    return run.cached


@pytest.mark.parametrize("damage", [*EXISTING, *IN_PLACE_OF_SLABS])
def test_answers_are_those_of_a_cold_run_and_new_blocks_are_kept(lab, tmp_path, damage: Damage):
    folder = tmp_path / "kv"
    answers(lab, folder)
    for seed in range(3):
        damage(folder, random.Random(seed))
        answers(lab, folder)
    cached = answers(lab, folder)
    assert all(cached.values()), "it goes on serving from the disk"


def test_of_one_damaged_record_the_rest_is_still_hit_and_it_is_counted_once(lab, tmp_path):
    folder = tmp_path / "kv"
    before = answers(lab, folder)
    again = answers(lab, folder)
    assert sum(again.values()) > sum(before.values())
    [slab] = slabs(folder)
    flip(slab, 3 * slot_bytes(slab) + 700)
    run = lab.start(kv_disk=folder)
    for ask in asks_of(lab):
        run.ask(ask)
    lab.assert_exact(run, *asks_of(lab))
    assert run.engine.tier is not None
    run.engine.tier.tier.flush()
    assert run.engine.tier.tier.stats().num_damaged == 1
    short = sum(again.values()) - sum(run.cached.values())
    assert 0 <= short <= 5 * 16, "one block, and what is behind it in one prompt"
    run.engine.close()
    assert answers(lab, folder) == again
