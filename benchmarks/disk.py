"""What the disk tier gives and costs: the first token from the disk, decode and prefill beside it, and a start.

    python -m benchmarks.disk [--model MODEL] [--repeats N] [--work DIR] [--write]

- The first token of a prompt of 4,000 tokens: computed, from memory, from the disk with its pages in memory and not.
- Decode and prefill of three engines in turns, one with a tier and two without, whose ratio is what chance makes of
  equals. Ratios are of neighbours; beside them stands the processor time that the tier's writing thread took, which
  repeats better than time does on a machine that others share.
- The start on a folder of 10 GB: its slabs are sparse, for at a start rows are read and no blocks.

``--write`` appends to RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.results import add_section, machine
from octavo import LLM
from octavo.cli.bench import disk, measure
from octavo.cli.bench.results import DISK_WAYS
from octavo.config import user_cache
from octavo.tiers.base import NO_TENANT, BlockKey, Origin
from octavo.tiers.contents import Place, StoredBlock
from octavo.tiers.folder import TierFolder
from octavo.tiers.slabs import SLAB_BYTES

_LOADS = {
    "decode, 1 sequence": (1, 32, 192),
    "decode, 16 sequences": (16, 32, 96),
    "prefill, 2,048 tokens": (1, 2048, 1),
}
"""(sequences, tokens of each prompt, tokens of each answer)"""
_PROMPT = 4000
_SLOT, _ADOPTED = 372_736, 10 * 10**9
"""Bytes of a slot of the embedded model in bf16, and of all slots of the folder that is adopted."""


def first_tokens(model: str, work: Path, repeats: int) -> list[str]:
    with tempfile.TemporaryDirectory(dir=work) as folder, LLM(model, kv_memory="512MiB", kv_disk=folder) as llm:
        [point] = disk._measure(llm, [_PROMPT], repeats, Path(folder)).points
    lines = ["| first token of 4,000 tokens | after | sooner | tokens read |", "|---|---|---|---|"]
    for way in DISK_WAYS:
        ratios = [a / b for a, b in zip(point.seconds["computed"], point.seconds[way], strict=True)]
        lines.append(
            f"| {way} | {1000 * point.median(way):,.1f} ms | {median(ratios):.1f} x | "
            f"{point.num_cached_tokens[way]:,} |"
        )
    return lines


def costs(model: str, work: Path, repeats: int) -> list[str]:
    lines = [
        "| beside a tier | without | with | with / without | without / without | processor time of writing |",
        "|---|---|---|---|---|---|",
    ]
    rng = random.Random(0)
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        LLM(model, kv_memory="512MiB") as without,
        LLM(model, kv_memory="512MiB", kv_disk=folder) as tiered,
        LLM(model, kv_memory="512MiB") as control,
    ):
        engines = [without, tiered, control]
        for name, (count, length, tokens) in _LOADS.items():
            times: dict[LLM, list[float]] = {llm: [] for llm in engines}
            writing = _writing_seconds()
            for number in range(repeats + 1):
                prompts = measure.random_prompts(without, rng, count, length)
                for llm in (*engines[number % 3 :], *engines[: number % 3]):
                    times[llm].append(measure.seconds(llm, prompts, tokens))
                tiered.flush_kv_disk()
            writing = (_writing_seconds() - writing) / sum(times[tiered])
            off, on, other = (times[llm][1:] for llm in engines)
            cost, chance = (median([b / a for a, b in zip(off, each, strict=True)]) for each in (on, other))
            figures = f"{median(off):.3f} s | {median(on):.3f} s | {cost:.3f} | {chance:.3f} | {writing:.1%} of one"
            lines.append(f"| {name} | {figures} |")
        assert tiered.engine.tier is not None
        stats = tiered.engine.tier.tier.stats()
    lines += [
        "",
        f"{stats.num_stored:,} blocks ({stats.bytes_stored:,} bytes) were stored, {stats.num_dropped} dropped.",
    ]
    return lines


def _writing_seconds() -> float:
    """Processor time that threads of this process took that write blocks."""
    threads = [thread for thread in threading.enumerate() if thread.name == "octavo-store"]
    stats = [Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text() for thread in threads]
    return sum(int(text.split()[0]) for text in stats) / 1e9


def start(work: Path, repeats: int) -> str:
    count, per_slab = _ADOPTED // _SLOT, SLAB_BYTES // _SLOT
    with tempfile.TemporaryDirectory(dir=work) as name:
        path = Path(name)
        for number in range(-(-count // per_slab)):
            slab = path / f"{_SLOT}-{number}.slab"
            slab.touch(0o600)
            os.truncate(slab, min(per_slab, count - number * per_slab) * _SLOT)
        folder = TierFolder(path, limit=2 * _ADOPTED)
        root = bytes(32)
        origin = Origin(root, root, NO_TENANT, "rows alone")
        numbers = [n * per_slab + within for n in range(-(-count // per_slab)) for within in range(per_slab)][:count]
        folder._index.add(
            StoredBlock(BlockKey(n.to_bytes(32, "big"), 0), Place(_SLOT, n), origin, root, 16, float(n))
            for n in numbers
        )
        folder.close()
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            folder = TierFolder(path, limit=2 * _ADOPTED)
            times.append(time.perf_counter() - began)
            assert len(folder) == count
            folder.close()
    return f"A folder of {_ADOPTED / 1e9:.0f} GB ({count:,} blocks) is adopted in {median(times):.2f} s."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--work", type=Path, default=user_cache(), help="on the disk that is to be measured")
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    given = parser.parse_args()
    lines = [
        *first_tokens(given.model, given.work, given.repeats),
        "",
        *costs(given.model, given.work, given.repeats),
        "",
        start(given.work, given.repeats),
    ]
    text = f"{date.today()}, {machine()}, {given.model}, medians of {given.repeats}.\n\n" + "\n".join(lines) + "\n"
    print(text)
    if given.write:
        add_section("The disk tier (`python -m benchmarks.disk`)", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
