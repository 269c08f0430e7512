"""Octavo itself, measured like its peers: in a process of its own, asked the same questions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.engine import TokenEngine
from benchmarks.peers.place import Place
from benchmarks.peers.recipe import HOST, Recipe
from benchmarks.peers.shapes import MAX_NUM_SEQS

NAME = "Octavo"
KV_MEMORY = "512MiB"


def set_up(place: Place) -> None:
    """Nothing: it runs where this program runs."""


def python(place: Place) -> Path:
    return Path(sys.executable)


def environment(place: Place, threads: int) -> Mapping[str, str]:
    return {}


def serve(place: Place, threads: int, port: int) -> Recipe:
    from octavo.model.embedded import EMBEDDED_MODEL

    command = [sys.executable, "-m", "octavo", "serve", EMBEDDED_MODEL, "--host", HOST, "--port", str(port)]
    return Recipe([*command, "--threads", str(threads), "--kv-memory", KV_MEMORY], {}, "/ready")


def open_engine(work: Path, threads: int) -> TokenEngine:
    return _Octavo(threads)


class _Octavo(TokenEngine):
    def __init__(self, threads: int) -> None:
        from octavo import LLM
        from octavo.model.embedded import EMBEDDED_MODEL

        self._llm = LLM(EMBEDDED_MODEL, threads=threads, kv_memory=KV_MEMORY, max_num_seqs=MAX_NUM_SEQS)

    @property
    def version(self) -> str:
        from octavo import __version__

        return f"{__version__} ({self._llm.summary.isa})"

    def roof(self) -> tuple[float, float]:
        from octavo.cli.bench.roofline import measure_roof

        roof = measure_roof(self._llm)
        return roof.bytes_per_second, roof.operations_per_second

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        from octavo import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
