"""Octavo beside llama.cpp, OpenVINO GenAI, vLLM and transformers: same machine, same weights, same shapes, one run.

    python -m benchmarks.compare --setup [PEER...]     make an environment and model files for each peer, once
    python -m benchmarks.compare [--only SHAPE...] [--peers PEER...] [--repeats N] [--write]

All use bf16 weights, a 16-bit KV cache, greedy sampling and equally many threads. Each engine is a process that stays
loaded and stands still while another is measured; engines take turns shape by shape and round by round, because shared
machines swing by a factor of two within minutes. A ratio is the median of those within one round. Decode is the time
for several steps, from prompts that are in the cache already, so that prefill does not count.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path

from benchmarks import report
from benchmarks.peers.errors import PeerError
from benchmarks.peers.peer import BY_NAME, OCTAVO, Peer, start
from benchmarks.peers.place import Place
from benchmarks.peers.shapes import DECODE_STEPS, SHAPES, Shape, Timing
from benchmarks.peers.worker import Worker
from benchmarks.results import RESULTS, add_section, machine
from octavo.cli.bench import roofline
from octavo.config import EngineConfig, user_cache
from octavo.model.embedded import EMBEDDED_MODEL
from octavo.model.source import resolve_model
from octavo.model.spec import ModelSpec
from octavo.planner import kv_formats

_LOAD_SECONDS = 900
"""vLLM compiles when it is started for the first time."""
_MEASURE_SECONDS = 300

Say = Callable[[str], None]


def main() -> None:
    arguments = _arguments()
    place = Place(arguments.work, arguments.torch_index)
    if arguments.setup is not None:
        sys.exit(set_up([BY_NAME[name] for name in arguments.setup or BY_NAME], place, _say))
    peers = [BY_NAME[name] for name in arguments.peers or BY_NAME]
    shapes = [shape for shape in SHAPES if not arguments.only or shape.name in arguments.only]
    with Run(peers, place, arguments.threads, _say) as run:
        rows = run.measure(shapes, arguments.repeats)
        text = f"{run.heading()}\n\n{report.tables(rows, run.peers)}"
    print(text)
    if arguments.write:
        add_section(f"Beside the peers (`{_command()}`)", text)


def set_up(peers: Sequence[Peer], place: Place, say: Say) -> int:
    """Set up each peer. One that fails does not keep the others. Returns the program's exit status."""
    failed = []
    for peer in peers:
        say(f"{peer.NAME}: setting up in {place.work}")
        try:
            peer.set_up(place)
        except PeerError as error:
            failed.append(peer.NAME)
            say(f"{peer.NAME}: not ready: {error}")
        else:
            say(f"{peer.NAME}: ready")
    if failed:
        say(f"not set up: {', '.join(failed)}")
    return 1 if failed else 0


class Run:
    """All engines, loaded. A context manager: their processes end with it."""

    def __init__(self, peers: Sequence[Peer], place: Place, threads: int, say: Say) -> None:
        self._say = say
        self._threads = threads
        self._spec = resolve_model(EMBEDDED_MODEL).spec
        self._versions: dict[str, str] = {}
        self._ending = ExitStack()
        with ExitStack() as ending:
            self._octavo = self._load(OCTAVO, place, ending)
            self._peers = []
            for peer in peers:
                try:
                    self._peers.append(self._load(peer, place, ending))
                except PeerError as error:
                    say(f"left out: {error}")
            self._ending = ending.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def peers(self) -> list[str]:
        return [worker.name for worker in self._peers]

    def heading(self) -> str:
        """When, where and with which versions."""
        versions = ", ".join(f"{name} {version}" for name, version in self._versions.items())
        return f"{date.today()}, {machine()}, {self._threads} threads, {EMBEDDED_MODEL} in bf16. {versions}:"

    def measure(self, shapes: Sequence[Shape], repeats: int) -> list[report.Row]:
        """Raises:
        PeerError: Octavo failed. A peer that fails is said so, and its figure is left out.
        """
        timings: dict[tuple[str, Shape], list[Timing | None]] = {}
        roofs: dict[Shape, list[roofline.Roof]] = {shape: [] for shape in shapes}
        for turn in range(repeats):
            for number, shape in enumerate(shapes):
                seed = turn * len(shapes) + number
                before = self._roof()
                # Who begins changes, so that nobody always runs in the warmth or heat that the same other leaves.
                workers = [self._octavo, *self._peers]
                first = seed % len(workers)
                for worker in workers[first:] + workers[:first]:
                    timings.setdefault((worker.name, shape), []).append(self._timing(worker, shape, 2 * seed))
                roofs[shape].append(before.mean(self._roof()))
        return [
            report.Row(
                shape,
                [timing for timing in timings[self._octavo.name, shape] if timing is not None],
                {worker.name: timings[worker.name, shape] for worker in self._peers},
                roofs[shape],
                work_of(self._spec, shape),
            )
            for shape in shapes
        ]

    def _timing(self, worker: Worker, shape: Shape, seed: int) -> Timing | None:
        try:
            timing = worker.measure(shape, seed, _MEASURE_SECONDS)
        except PeerError as error:
            if worker is self._octavo:
                raise
            self._say(f"{shape.title}: {error}")
            return None
        self._say(f"{shape.title}: {worker.name} {shape.num_timed_tokens / timing.seconds:,.1f} per second")
        return timing

    def _roof(self) -> roofline.Roof:
        return roofline.Roof(*self._octavo.roof(_MEASURE_SECONDS))

    def _load(self, peer: Peer, place: Place, ending: ExitStack) -> Worker:
        self._say(f"{peer.NAME}: loading")
        worker = start(peer, place, self._threads)
        ending.callback(worker.close)
        self._versions[peer.NAME] = worker.wait_until_loaded(_LOAD_SECONDS)
        return worker


def work_of(spec: ModelSpec, shape: Shape) -> roofline.Work:
    """What one measurement of a shape cannot avoid: one step, one prefill, or what the new tokens of a prompt need."""
    formats = kv_formats(spec, EngineConfig())
    if shape.kind == "decode":
        return roofline.decode_step(spec, formats, shape.count, shape.length + DECODE_STEPS / 2)
    if shape.kind == "prefill":
        return roofline.prefill(spec, shape.count, shape.length)
    cached, whole = (roofline.prefill(spec, 1, length) for length in (shape.length, shape.length + shape.new))
    read = roofline.decode_step(spec, formats, 1, shape.length + shape.new)
    return roofline.Work(read.bytes, whole.operations - cached.operations)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names, shapes = list(BY_NAME), [shape.name for shape in SHAPES]
    parser.add_argument("--setup", nargs="*", choices=names, metavar="PEER", help="set up these (default: all) and end")
    parser.add_argument("--peers", nargs="+", choices=names, metavar="PEER", help=f"of: {', '.join(names)}")
    parser.add_argument("--only", nargs="+", choices=shapes, metavar="SHAPE", help=f"of: {', '.join(shapes)}")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds; medians count (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--work", type=Path, default=user_cache() / "peers", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--torch-index", metavar="URL", help="a pip index with CPU builds of torch, for --setup")
    parser.add_argument("--write", action="store_true", help=f"append the tables to {RESULTS.name}")
    return parser.parse_args()


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks.compare", *(word for word in sys.argv[1:] if word != "--write")])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
