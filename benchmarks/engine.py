"""What the engine reaches on this machine, beside what the machine itself gives in the same minute.

    python -m benchmarks.engine [--model MODEL] [--repeats N] [--write]

Every figure is a median of several runs, taken in turn with a measurement of the machine's roof (memory bandwidth and
arithmetic), because shared machines swing by a factor of two within an hour. ``--write`` appends to RESULTS.md.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from statistics import mean, median

import psutil

from benchmarks.results import add_section, machine
from octavo import LLM, SamplingParams
from octavo.cli.bench import measure, roofline
from octavo.config import EngineConfig
from octavo.model.source import resolve_model
from octavo.planner import kv_formats

GIGA = 1e9


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, what came out, what it should be."""

    what: str
    figure: str
    beside: str
    target: str
    reached: bool


class Bench:
    def __init__(self, model: str, repeats: int) -> None:
        self.model = model
        self.repeats = repeats
        self.llm = LLM(model, kv_memory="512MiB")
        self.summary = self.llm.summary
        self.spec = resolve_model(model).spec
        self._rng = random.Random(0)

    def roof(self) -> roofline.Roof:
        return roofline.measure_roof(self.llm)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Random prompts, so that no prefix is shared."""
        return measure.random_prompts(self.llm, self._rng, count, length)

    def seconds(self, prompts: list[list[int]], max_tokens: int) -> float:
        return measure.seconds(self.llm, prompts, max_tokens)

    def decode(self, count: int, context: int, tokens: int) -> float:
        """Seconds per step of ``count`` sequences at about ``context`` tokens; prefill does not count."""
        return measure.seconds_per_step(self.llm, self.prompts(count, context), tokens)

    def rows(self) -> Iterator[Row]:
        yield from self._decode_and_batch()
        yield self._prefill()
        yield self._start()
        yield self._python_share()
        yield self._slots()
        yield self._resident()

    def _decode_and_batch(self) -> Iterator[Row]:
        shares, alone, together, bandwidths = [], [], [], []
        for _ in range(self.repeats):
            bandwidth = self.roof().bytes_per_second
            step = self.decode(1, 128, 64)
            bandwidth = (bandwidth + self.roof().bytes_per_second) / 2
            shares.append(
                roofline.decode_step(self.spec, kv_formats(self.spec, EngineConfig()), 1, 128 + 32).bytes
                / step
                / bandwidth
            )
            bandwidths.append(bandwidth)
            alone.append(1 / step)
            together.append(16 / self.decode(16, 128, 32))
        share, ratio = median(shares), median([b / a for a, b in zip(alone, together, strict=True)])
        yield Row(
            "decode, 1 x 128",
            f"{median(alone):.0f} tok/s",
            f"{share:.0%} of {median(bandwidths) / GIGA:.1f} GB/s read",
            "75 % of bandwidth",
            share >= 0.75,
        )
        yield Row("decode, 16 x 128", f"{median(together):.0f} tok/s", f"{ratio:.1f} x 1 x 128", "6 x", ratio >= 6)

    def _prefill(self) -> Row:
        rates, shares = [], []
        for _ in range(self.repeats):
            peak = self.roof().operations_per_second
            seconds = self.seconds(self.prompts(1, 1024), 0)
            rates.append(1024 / seconds)
            shares.append(roofline.prefill(self.spec, 1, 1024).operations / seconds / peak)
        return Row(
            "prefill, 1,024 tokens",
            f"{median(rates):.0f} tok/s",
            f"{median(shares):.0%} of {self.roof().operations_per_second / GIGA:.0f} GFLOP/s {self.summary.isa}",
            "2,500 tok/s with AVX-512 BF16",
            median(rates) >= 2500,
        )

    def _start(self) -> Row:
        command = [sys.executable, "-m", "octavo", "generate", "Hello", "--model", self.model, "--max-tokens", "1"]
        times = []
        for _ in range(self.repeats + 1):
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        seconds = median(times[1:])
        return Row("process start to first token", f"{seconds:.2f} s", "files in the page cache", "3 s", seconds < 3)

    def _python_share(self) -> Row:
        shares, milliseconds = [], []
        for _ in range(self.repeats):
            prompts = self.prompts(32, 128)
            self.seconds(prompts, 0)
            stats = self.llm.engine.stats
            python, native, steps = stats.python_seconds, stats.native_seconds, stats.num_steps
            self.seconds(prompts, 48)
            python, native = stats.python_seconds - python, stats.native_seconds - native
            shares.append(python / (python + native))
            milliseconds.append(python / (stats.num_steps - steps) * 1e3)
        return Row(
            "Python per step, 32 sequences",
            f"{median(milliseconds):.2f} ms",
            f"{median(shares):.1%} of the step",
            "10 %",
            median(shares) < 0.1,
        )

    def _slots(self) -> Row:
        """Allocated but unused token slots while requests of mixed lengths run."""
        engine = self.llm.engine
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        for prompt in (p for length in (3, 40, 77, 130, 200, 300, 15, 64) for p in self.prompts(2, length)):
            engine.add(engine.intake.accept(prompt, params))
        unused, samples = [], 0
        while engine.has_unfinished:
            engine.step()
            for request in engine.scheduler.running:
                unused.append(request.blocks.num_blocks * engine.plan.block_size - request.num_computed_tokens)
                samples += 1
        most = max(unused)
        return Row(
            "allocated, unused slots",
            f"{mean(unused):.1f} tokens per sequence",
            f"at most {most} of a block of {engine.plan.block_size}",
            "one block",
            most < engine.plan.block_size,
        )

    def _resident(self) -> Row:
        """Resident bytes beside weights and pool, once the whole pool has been written."""
        length = self.summary.max_model_len // 2
        self.seconds(self.prompts(self.summary.num_tokens // length + 1, length), 0)
        weights, pool = self.summary.weight_bytes, self.summary.allocated_bytes
        rest = psutil.Process().memory_info().rss - weights - pool
        return Row(
            "resident beside weights and KV pool",
            f"{rest / 2**20:.0f} MiB",
            f"{weights / 2**20:.0f} MiB weights, {pool / 2**20:.0f} MiB pool",
            "200 MB",
            rest < 200e6,
        )


def table(bench: Bench, progress: Callable[[str], None]) -> str:
    lines = [
        f"{date.today()}, {machine()}, {bench.summary.isa}, {bench.summary.threads} threads, {bench.summary.model}:",
        "",
        "| what | reached | beside | target | |",
        "|---|---|---|---|---|",
    ]
    for row in bench.rows():
        mark = "yes" if row.reached else "**no**"
        lines.append(f"| {row.what} | {row.figure} | {row.beside} | {row.target} | {mark} |")
        progress(lines[-1])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="append the table to benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    text = table(Bench(arguments.model, arguments.repeats), lambda line: print(line, file=sys.stderr, flush=True))
    print(text)
    if arguments.write:
        add_section(f"The engine (`python -m benchmarks.engine --repeats {arguments.repeats}`)", text)


if __name__ == "__main__":
    main()
