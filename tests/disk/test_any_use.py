"""Whatever becomes of engines and of the files between them, every answer has the bits that it has without a tier."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from exactness_lab import Ask, Lab, Run, small_lab
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

PROMPTS = 8
BYTES = 2 * 2**20


def prompt(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompt(50, seed=number % 3) + lab.prompt(5 + 23 * number % 90, seed=number)


def flip_bits(folder: Path, rng: random.Random) -> None:
    for slab in folder.glob("*.slab"):
        with slab.open("r+b") as file:
            for _ in range(rng.randint(1, 20) if slab.stat().st_size else 0):
                at = rng.randrange(slab.stat().st_size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))


def cut(folder: Path, rng: random.Random) -> None:
    for path in folder.glob("*.slab"):
        os.truncate(path, rng.randrange(path.stat().st_size + 1))


def delete(folder: Path, rng: random.Random) -> None:
    rng.choice(sorted(folder.iterdir())).unlink()


def garble_index(folder: Path, rng: random.Random) -> None:
    path = folder / "index.sqlite"
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 200)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def old_index(folder: Path, rng: random.Random) -> None:
    """One of an earlier time: it says of slots what they held then."""
    kept = folder.parent / "an old index"
    path = folder / "index.sqlite"
    if kept.exists():
        path.write_bytes(kept.read_bytes())
    else:
        kept.write_bytes(path.read_bytes())


def swap(folder: Path, rng: random.Random) -> None:
    """Two records change places."""
    for slab in folder.glob("*.slab"):
        size = int(slab.name.partition("-")[0])
        count = slab.stat().st_size // size
        if not count:
            continue
        data = bytearray(slab.read_bytes())
        one, other = (slice(n * size, (n + 1) * size) for n in rng.choices(range(count), k=2))
        data[one], data[other] = data[other], data[one]
        slab.write_bytes(data)


DAMAGE: list[Callable[[Path, random.Random], None]] = [flip_bits, cut, delete, garble_index, old_index, swap]


class AnyUse(RuleBasedStateMachine):
    @initialize(
        shape=st.sampled_from(["gqa", "windowed", "hybrid", "soft-capped, two rotary bases"]),
        kv_dtype=st.sampled_from(["bf16", "int8", "int4"]),
    )
    def start(self, shape: str, kv_dtype: str) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name) / "kv"
        self.shape, self.kv_dtype = shape, kv_dtype
        self.seed, self.asks = 0, []
        self.run: Run
        self.open(300, 64, "bf16" if kv_dtype == "int4" else kv_dtype)

    def open(self, slots: int, num_blocks: int, kv_dtype: str) -> None:
        self.lab = small_lab(self.shape, "generic", kv_dtype)
        self.run = self.lab.start(
            kv_disk=self.folder, kv_disk_limit=BYTES + 65_536 + slots * 8_192, num_blocks=num_blocks
        )
        assert self.run.engine.tier is not None
        self.asks = []

    @rule(
        numbers=st.lists(st.integers(0, PROMPTS - 1), min_size=1, max_size=4),
        max_tokens=st.integers(1, 24),
        n=st.sampled_from([1, 1, 1, 2]),
    )
    def ask(self, numbers: list[int], max_tokens: int, n: int) -> None:
        for number in numbers:
            self.seed += 1
            ask = Ask(self.seed, prompt(self.lab, number), max_tokens, n=n)
            self.run.add(ask)
            self.asks.append(ask)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.run.step()

    @precondition(lambda self: self.asks)
    @rule(pick=st.integers(0, 7))
    def abort(self, pick: int) -> None:
        ask = self.asks.pop(pick % len(self.asks))
        self.run.abort(ask.seed)

    @rule()
    def reset(self) -> None:
        self.run.engine.reset_prefix_cache()

    @rule(
        slots=st.sampled_from([12, 60, 300]),
        num_blocks=st.sampled_from([40, 64, 120]),
        other=st.booleans(),
        damage=st.none() | st.sampled_from(DAMAGE),
        seed=st.integers(0, 999),
    )
    def restart(self, slots: int, num_blocks: int, other: bool, damage: object, seed: int) -> None:
        self.settle()
        self.run.engine.close()
        if callable(damage):
            damage(self.folder, random.Random(seed))
        kv_dtype = self.lab.kv_dtype
        if other:
            kv_dtype = "bf16" if kv_dtype != "bf16" else "int8"
        self.open(slots, num_blocks, kv_dtype)

    @rule(damage=st.sampled_from([flip_bits, cut, swap]), seed=st.integers(0, 999))
    def damage_under_its_feet(self, damage: Callable[[Path, random.Random], None], seed: int) -> None:
        damage(self.folder, random.Random(seed))

    def settle(self) -> None:
        self.run.finish()
        self.lab.assert_exact(self.run, *self.asks)
        self.run.engine.tier.tier.flush()
        size = sum(path.stat().st_size for path in self.folder.iterdir())
        assert size <= self.run.engine.config.kv_disk_limit_bytes

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return  # it was not even begun
        self.settle()
        self.run.engine.close()
        self.place.cleanup()


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("damage", DAMAGE)
def test_after_damage_of_any_kind_the_answers_are_those_of_a_cold_run_and_new_blocks_are_kept(tmp_path, damage):
    lab, folder = small_lab("hybrid", "generic"), tmp_path / "kv"
    asks = [Ask(seed, prompt(lab, seed)) for seed in range(PROMPTS)]
    run = lab.start(kv_disk=folder).ask(*asks)
    run.engine.close()
    for round_ in range(4):
        damage(folder, random.Random(round_))
        run = lab.start(kv_disk=folder)
        for ask in asks:
            run.ask(ask)
        lab.assert_exact(run, *asks)
        run.engine.close()
    run = lab.start(kv_disk=folder)
    for ask in asks:
        run.ask(ask)
    lab.assert_exact(run, *asks)
    assert sum(cached > 0 for cached in run.cached.values()) == PROMPTS
    run.engine.close()
