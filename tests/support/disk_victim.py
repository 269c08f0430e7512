"""A process with an engine and a disk tier, under load until it is killed: run as a script.

Its prompts are those of :func:`prompt`; it prints ``durable`` once the pinned one is, and a line for each answer.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from exactness_lab import Ask, Lab, Run, small_lab

SHAPE, ISA = "hybrid", "generic"
NUM_PROMPTS = 12
PINNED = 99
LIMIT = 2 * 2**20 + 600_000
"""Of the folder: the index's room, and less than all prompts need, so that slots are used again all the time."""


def lab() -> Lab:
    return small_lab(SHAPE, ISA)


def prompt(number: int) -> tuple[int, ...]:
    """Some begin alike."""
    return lab().prompt(40, seed=number % 4) + lab().prompt(30 + 17 * (number % 7), seed=number)


def start(folder: Path, **options: object) -> Run:
    return lab().start(kv_disk=folder, num_blocks=80, threads=1, **{"kv_disk_limit": LIMIT, **options})


def main(folder: str, seed: str) -> None:
    rng = random.Random(seed)
    run = start(Path(folder))
    assert run.engine.tier is not None, "somebody else has the folder"
    tier = run.engine.tier.tier
    run.ask(Ask(0, prompt(PINNED), max_tokens=1))
    tier.flush()
    tier.folder.set_pinned([block.key for block in tier.folder.blocks() if is_of(run, block.key.block_hash)], True)  # type: ignore[attr-defined]
    print("durable", flush=True)
    asked = 1
    while True:
        asks = [Ask(asked + each, prompt(rng.randrange(NUM_PROMPTS)), rng.randint(1, 20)) for each in range(4)]
        run.ask(*asks)
        asked += len(asks)
        if rng.random() < 0.5:
            run.engine.reset_prefix_cache()
        print("answered", asked, flush=True)


def is_of(run: Run, block_hash: bytes) -> bool:
    """Whether a block is one of the pinned prompt's."""
    seq = run.engine.kv.new_sequence(list(prompt(PINNED)), run.engine._root(b""))
    seq.hash_blocks(len(seq.tokens) // 16, 16)
    return block_hash in seq.hashes


if __name__ == "__main__":
    main(*sys.argv[1:])
