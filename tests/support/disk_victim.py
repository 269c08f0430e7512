"""A process with an engine and a disk tier, under load until it is killed: run as a script.

It prints ``opening`` before it touches the folder, and ``durable`` with the numbers of prompts that are in the tier for
good, as far as it has made sure of that.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
from pathlib import Path

from exactness_lab import Ask, Lab, Run, small_lab

from octavo.engine.driver import Driver, Inbox
from octavo.engine.engine import Engine
from octavo.tiers.managing import pin_blocks

SHAPE, ISA = "hybrid", "generic"
NUM_PROMPTS = 12
PINNED = 99
NUM_THREADS = 4
TIGHT = 2 * 2**20 + 600_000
"""Of the folder: the index's room, and less than all prompts need, so that slots are used again all the time."""
ROOMY = 2**31


def lab() -> Lab:
    return small_lab(SHAPE, ISA)


def prompt(number: int) -> tuple[int, ...]:
    """Some begin alike."""
    return lab().prompt(40, seed=number % 4) + lab().prompt(30 + 17 * (number % 7), seed=number)


def start(folder: Path, limit: int = TIGHT, **options: object) -> Run:
    return lab().start(kv_disk=folder, kv_disk_limit=limit, num_blocks=80, threads=1, **options)


class Load:
    """Threads that ask one engine."""

    def __init__(self, run: Run, seed: str) -> None:
        assert run.engine.tier is not None, "somebody else has the folder"
        self.engine, self.tier = run.engine, run.engine.tier.tier
        self._driver = Driver(run.engine)
        self._seed = seed
        self._ids = itertools.count(1)

    def ask(self, number: int, max_tokens: int) -> None:
        ask = Ask(next(self._ids), prompt(number), max_tokens)
        inbox = Inbox()
        group = self.engine.intake.accept(list(ask.prompt), ask.params(), request_id=str(ask.seed))
        self._driver.add([group], inbox)
        while not self._driver.next(inbox).finished:
            pass

    def in_a_tight_folder(self, thread: int) -> None:
        """The same prompts again and again, whose blocks drive each other out."""
        rng = random.Random(f"{self._seed} {thread}")
        while True:
            self.ask(rng.randrange(NUM_PROMPTS), rng.randint(1, 20))
            if rng.random() < 0.2:
                self._driver.call(Engine.reset_prefix_cache)

    def in_a_roomy_folder(self, thread: int) -> None:
        """Always other prompts; now and then it waits until those that it has asked are durable."""
        rng = random.Random(f"{self._seed} {thread}")
        for begin in itertools.count(1000 * (NUM_THREADS * int(self._seed) + thread + 1), 3):
            asked = range(begin, begin + rng.randint(1, 3))
            for number in asked:
                self.ask(number, 1)
            self.tier.flush()
            say_durable(*asked)


def say_durable(*numbers: int) -> None:
    """One line in one piece, whichever thread it is and whenever it is killed."""
    os.write(1, f"durable {' '.join(map(str, numbers))}\n".encode())


def main(folder: str, seed: str, limit: str) -> None:
    print("opening", flush=True)
    run = start(Path(folder), int(limit))
    load = Load(run, seed)
    load.ask(PINNED, 1)
    load.tier.flush()
    pin_blocks(load.tier.folder, run.engine.block_hashes(prompt(PINNED)))  # type: ignore[attr-defined]
    say_durable(PINNED)
    work = load.in_a_tight_folder if int(limit) == TIGHT else load.in_a_roomy_folder
    threads = [threading.Thread(target=work, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
