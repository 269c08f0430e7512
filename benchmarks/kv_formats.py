"""How fast each KV format is beside bf16: ``python -m benchmarks.kv_formats``.

One model, one KV pool for each format. Every shape is timed in rounds, each format in turn within a round, so that a
machine whose memory changes its speed does so for all of them; the memory's speed is measured around every turn. A
step is one forward pass of the native core: the formats differ nowhere else. Blocks are filled by a prefill and copied.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

import numpy as np

from benchmarks.results import add_section, machine
from octavo import _native
from octavo.formats.kv_format import KV_DTYPES, layer_formats, parse_kv_dtype
from octavo.model.runner import ForwardBatch, Int32s, ModelRunner
from octavo.model.source import resolve_model
from octavo.model.weights import load_model

GIGA = 1e9
BLOCK_SIZE = 16
CHUNK = 512
_FILLED = 32  # blocks that a prefill writes; the others are copies of them
_STEPS = 3
_NO_COPIES = np.empty((0, 2), np.int32)


@dataclass(frozen=True)
class Shape:
    """``count`` sequences of ``length`` tokens, decoded together by one token more, or one prompt of that length."""

    kind: str
    count: int
    length: int

    def __str__(self) -> str:
        many = f"{self.count} x " if self.kind == "decode" else ""
        return f"{self.kind}, {many}{self.length:,}"

    @property
    def num_blocks(self) -> int:
        return self.count * -(-(self.length + _STEPS) // BLOCK_SIZE)


SHAPES = [
    *(Shape("decode", 1, length) for length in (128, 2000, 8000)),
    *(Shape("decode", 8, length) for length in (128, 1000)),
    *(Shape("decode", 16, length) for length in (128, 2000)),
    *(Shape("prefill", 1, length) for length in (512, 2048)),
]


class Bench:
    """The formats side by side. ``names[0]`` is what the others are compared with."""

    def __init__(self, model: str, names: Sequence[str]) -> None:
        self.names = names
        loaded = load_model(resolve_model(model), threads=None)
        self.isa, self.threads, self.vocab_size = loaded.model.isa, loaded.model.threads, loaded.spec.vocab_size
        self._rng = np.random.default_rng(0)
        num_blocks = 1 + max(shape.num_blocks for shape in SHAPES)
        self._runners = {
            name: ModelRunner(
                loaded.spec,
                loaded.model,
                kv_formats=layer_formats(parse_kv_dtype(name), loaded.spec.num_layers),
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                max_logit_rows=max(shape.count for shape in SHAPES),
            )
            for name in names
        }
        for runner in self._runners.values():
            _prefill(runner, self._tokens(_FILLED * BLOCK_SIZE))
            for block in range(_FILLED + 1, num_blocks):
                runner.pool.block(block)[:] = runner.pool.block(1 + (block - 1) % _FILLED)

    def times(self, shape: Shape, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
        """Seconds of a step (or of a prefill) in each format, and the memory's bytes per second around each."""
        times: dict[str, list[float]] = {name: [] for name in self.names}
        bandwidths = [self.bandwidth()]
        run = self._decode if shape.kind == "decode" else self._prefill
        for _ in range(rounds):
            for name, runner in self._runners.items():
                times[name].append(run(runner, shape))
                bandwidths.append(self.bandwidth())
        return times, bandwidths

    def bandwidth(self) -> float:
        return _native.measure_roof(self.isa, self.threads)[0]

    def _decode(self, runner: ModelRunner, shape: Shape) -> float:
        tables = np.arange(1, 1 + shape.num_blocks, dtype=np.int32).reshape(1, shape.count, -1)
        seconds = []
        for step in range(1, _STEPS + 1):
            batch = ForwardBatch(
                token_ids=self._tokens(shape.count),
                query_start_loc=np.arange(shape.count + 1, dtype=np.int32),
                seq_lens=np.full(shape.count, shape.length + step, np.int32),
                block_tables=tables,
                copies=_NO_COPIES,
                logit_rows=np.arange(shape.count, dtype=np.int32),
            )
            began = time.perf_counter()
            runner.execute(batch)
            seconds.append(time.perf_counter() - began)
        return median(seconds)

    def _prefill(self, runner: ModelRunner, shape: Shape) -> float:
        tokens = self._tokens(shape.length)
        began = time.perf_counter()
        _prefill(runner, tokens)
        return time.perf_counter() - began

    def _tokens(self, count: int) -> Int32s:
        return self._rng.integers(0, self.vocab_size, count).astype(np.int32)


def _prefill(runner: ModelRunner, tokens: Int32s) -> None:
    """Compute a prompt into the first blocks, chunk by chunk."""
    tables = np.arange(1, 1 + len(tokens) // BLOCK_SIZE, dtype=np.int32).reshape(1, 1, -1)
    for start in range(0, len(tokens), CHUNK):
        piece = tokens[start : start + CHUNK]
        runner.execute(
            ForwardBatch(
                token_ids=piece,
                query_start_loc=np.array([0, len(piece)], np.int32),
                seq_lens=np.array([start + len(piece)], np.int32),
                block_tables=tables,
                copies=_NO_COPIES,
                logit_rows=np.array([len(piece) - 1], np.int32),
            )
        )


def rows(bench: Bench, rounds: int) -> Iterator[str]:
    """The table's lines: milliseconds of the first format, then how many times as fast each of the others is."""
    base, *others = bench.names
    yield "| | memory | " + " | ".join([f"{base}, ms", *others]) + " |"
    yield "|---" * (len(others) + 3) + "|"
    for shape in SHAPES:
        times, bandwidths = bench.times(shape, rounds if shape.kind == "decode" else max(1, rounds // 3))
        ratios = [median(b / t for b, t in zip(times[base], times[name], strict=True)) for name in others]
        low, high = (np.percentile(bandwidths, percent) / GIGA for percent in (10, 90))
        cells = [f"{median(times[base]) * 1e3:.1f}", *(f"{ratio:.2f} x" for ratio in ratios)]
        yield f"| {shape} | {low:.0f} to {high:.0f} GB/s | " + " | ".join(cells) + " |"


def table(bench: Bench, rounds: int, progress: Callable[[str], None]) -> str:
    lines = [f"{date.today()}, {machine()}, {bench.isa}, {bench.threads} threads, medians of {rounds} rounds:", ""]
    for line in rows(bench, rounds):
        lines.append(line)
        progress(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--formats", default=",".join(KV_DTYPES), help="the first is what others are compared with")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--write", action="store_true", help="append the table to benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.formats.split(","))
    text = table(bench, arguments.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    print(text)
    if arguments.write:
        add_section(f"KV formats (`python -m benchmarks.kv_formats --rounds {arguments.rounds}`)", text)


if __name__ == "__main__":
    main()
