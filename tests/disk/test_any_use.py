"""Whatever becomes of engines and of the files between them, every answer has the bits that it has without a tier."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from exactness_lab import Ask, Lab, Run, small_lab
from folder_damage import EXISTING, TO_SLABS, Damage
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.errors import TierInUseError
from octavo.tiers.folder import TierFolder
from octavo.tiers.verifying import verify

PROMPTS = 8
INDEX = 2 * 2**20
MODELS = [
    ("gqa", "bf16"),
    ("gqa", "int8"),
    ("gqa", "int4"),
    ("windowed", "int8:fp8"),
    ("hybrid", "bf16"),
    ("hybrid", "fp8"),
    ("post-normed, half rotated", "int4-full"),
    ("biased, one layer unrotated", "int4:bf16"),
    ("soft-capped, two rotary bases", "bf16"),
]
"""Every codec, with windows and without, one layer group and several."""


def prompt(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompt(50, seed=number % 3) + lab.prompt(5 + 23 * number % 90, seed=number)


class Moody:
    """Calls of the disk that fail now and then, for the time being; and as they were before, afterwards."""

    NAMES = ("preadv", "pwritev", "fdatasync", "posix_fallocate")

    def __init__(self) -> None:
        self._whole = {name: getattr(os, name) for name in self.NAMES}

    def be(self, seed: int, share: float) -> None:
        rng = random.Random(seed)
        for name, call in self._whole.items():

            def moody(*args: Any, call: Any = call) -> Any:
                if rng.random() < share:
                    raise OSError(rng.choice([errno.EIO, errno.ENOSPC]), "in no mood")
                return call(*args)

            setattr(os, name, moody)

    def be_well(self) -> None:
        for name, call in self._whole.items():
            setattr(os, name, call)


class AnyUse(RuleBasedStateMachine):
    """Two models share a folder; one at a time has it."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Moody()
        self.run: Run | None = None

    @initialize(models=st.lists(st.sampled_from(MODELS), min_size=2, max_size=2, unique=True))
    def start(self, models: list[tuple[str, str]]) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name) / "kv"
        self.labs = [small_lab(shape, "generic", kv_dtype) for shape, kv_dtype in models]
        self.seed = 0
        self.is_sound = True
        self.asks: list[Ask] = []
        self.open(0, 300, 64, "64MiB")

    def open(self, which: int, slots: int, num_blocks: int, queue: str | int) -> None:
        self.lab = self.labs[which]
        limit = INDEX + 65_536 + slots * 8_192
        self.run = self.lab.start(
            kv_disk=self.folder, kv_disk_limit=limit, kv_disk_queue=queue, num_blocks=num_blocks, threads=1
        )
        assert self.run.engine.tier is not None
        self.tier: Any = self.run.engine.tier.tier
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

    @rule()
    def flush(self) -> None:
        self.tier.flush()

    @rule(what=st.sampled_from(["verify", "tidy", "clear", "pin", "unpin"]), share=st.sampled_from([0.3, 1.0]))
    def manage(self, what: str, share: float) -> None:
        folder: TierFolder = self.tier.folder
        blocks = folder.blocks()
        some = {block.key for block in blocks[: int(share * len(blocks))]}
        if what == "verify":
            verify(folder)
        elif what == "tidy":
            folder.tidy()
        elif what == "clear":
            try:
                folder.clear(lambda block: block.key in some)
            except OSError as error:
                assert "in no mood" in str(error)
        else:
            folder.set_pinned(some, what == "pin")

    @rule(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    def the_disk_is_moody(self, seed: int, share: float) -> None:
        self.disk.be(seed, share)

    @rule(damage=st.sampled_from(TO_SLABS), seed=st.integers(0, 999))
    def damage_under_its_feet(self, damage: Damage, seed: int) -> None:
        damage(self.folder, random.Random(seed))
        self.is_sound = False

    @rule()
    def a_second_one_is_refused(self) -> None:
        with pytest.raises(TierInUseError):
            TierFolder(self.folder, limit=2**30)

    @rule(
        which=st.integers(0, 1),
        slots=st.sampled_from([12, 60, 300]),
        num_blocks=st.sampled_from([40, 64, 120]),
        queue=st.sampled_from([1, "100KiB", "64MiB"]),
        damage=st.none() | st.sampled_from(EXISTING),
        seed=st.integers(0, 999),
    )
    def restart(
        self, which: int, slots: int, num_blocks: int, queue: str | int, damage: Damage | None, seed: int
    ) -> None:
        self.settle()
        self.run.engine.close()
        if damage is not None:
            damage(self.folder, random.Random(seed))
            self.is_sound = False
        self.open(which, slots, num_blocks, queue)

    def settle(self) -> None:
        self.run.finish()
        self.lab.assert_exact(self.run, *self.asks)
        self.disk.be_well()
        self.tier.flush()
        threads = (self.tier._writer, *self.tier._readers)
        assert all(thread.is_alive() for thread in threads), "none of its threads met what it did not expect"
        if self.is_sound:
            assert self.tier.stats().num_damaged == 0, "a disk that is moody damages nothing"
            size = sum(path.stat().st_size for path in self.folder.iterdir())
            assert size <= self.run.engine.config.kv_disk_limit_bytes

    def teardown(self) -> None:
        try:
            if self.run is not None:
                self.settle()
                self.run.engine.close()
        finally:
            self.disk.be_well()
            if hasattr(self, "place"):
                self.place.cleanup()


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.soak
def test_any_use_for_long() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(AnyUse, settings=settings(max_examples=2000, stateful_step_count=40, deadline=None))
