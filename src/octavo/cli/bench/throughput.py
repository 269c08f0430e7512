"""``octavo bench throughput``: tokens per second, beside what the machine allows."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.options import (
    Debug,
    Isa,
    Json,
    KV8BitLayers,
    KVDtype,
    KVMemory,
    MaxModelLen,
    ModelOption,
    NoKVQualityGate,
    Threads,
    given,
    kv_format,
)
from octavo.errors import CapacityError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.bench.roofline import Bound, Roof, Work
    from octavo.llm import LLM
    from octavo.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Shape:
    """``count`` sequences of ``length`` tokens, to be continued together (decode) or computed (prefill)."""

    kind: Literal["decode", "prefill"]
    count: int
    length: int

    @property
    def num_tokens(self) -> int:
        """That each sequence comes to hold."""
        return self.length + (_STEPS + 1 if self.kind == "decode" else 0)

    def __str__(self) -> str:
        return f"{self.kind}, {self.count} x {self.length:,}"


_STEPS = 64
"""Of decode, for one figure."""
_SHAPES = (
    *(Shape("decode", count, 128) for count in (1, 8, 16, 32)),
    *(Shape("decode", count, 1024) for count in (1, 8)),
    Shape("decode", 1, 7900),
    *(Shape("prefill", count, 128) for count in (1, 8)),
    *(Shape("prefill", 1, length) for length in (1024, 4096)),
)


def throughput(
    model: ModelOption = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each shape; their median counts.")] = 3,
    as_json: Json = False,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    max_model_len: MaxModelLen = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Measure tokens per second of decode and prefill.

    Each figure stands beside the roof that was measured around it: the tokens per second that this machine's memory
    bandwidth and arithmetic allow at most. Shapes that the context or the KV memory does not hold are left out, and
    it says so. With the defaults and the embedded model it takes two minutes on two processors; --max-model-len 300
    keeps to the short ones.
    """
    from octavo.cli.starting import open_llm
    from octavo.model.source import DEFAULT_MODEL, resolve_model

    options = given(
        kv_memory=kv_memory,
        max_model_len=max_model_len,
        threads=threads,
        isa=isa,
        **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate),
    )
    with open_llm(model, options) as llm:
        spec = resolve_model(DEFAULT_MODEL if model is None else model).spec
        result = _measure(llm, spec, repeats)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        _show(result)


@dataclass(frozen=True, slots=True)
class Figure:
    """One shape. ``seconds``: of one step of decode or of a whole prefill, one for each run; ``roofs``: what the
    machine gave around each of them; ``work``: what no machine can avoid.
    """

    shape: Shape
    work: Work
    seconds: list[float]
    roofs: list[Roof]

    @property
    def num_tokens(self) -> int:
        """That a run computes."""
        return self.shape.count * (1 if self.shape.kind == "decode" else self.shape.length)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / statistics.median(self.seconds)

    @property
    def limit(self) -> float:
        """Tokens per second under the roof."""
        return self.num_tokens / statistics.median(roof.least_seconds(self.work) for roof in self.roofs)

    @property
    def share(self) -> float:
        """Of the limit, each run beside its own roof.

        The median is that of times over limits: a run that was lost in noise has a time of nothing or less, and stays
        at its end of the order that way.
        """
        pairs = zip(self.roofs, self.seconds, strict=True)
        return 1 / statistics.median(seconds / roof.least_seconds(self.work) for roof, seconds in pairs)

    @property
    def bound(self) -> Bound:
        """By what most runs are limited."""
        return statistics.mode(roof.bound(self.work) for roof in self.roofs)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.shape),
            "tokens_per_second": self.tokens_per_second,
            "limit_tokens_per_second": self.limit,
            "share_of_limit": self.share,
            "bound": self.bound,
            **asdict(self.work),
            "seconds": self.seconds,
            "roofs": [asdict(roof) for roof in self.roofs],
        }


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """What was measured, and why the rest was not. ``engine``: model, instruction set and threads, for people."""

    engine: str
    repeats: int
    figures: list[Figure]
    left_out: dict[Shape, str]

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "repeats": self.repeats,
            "figures": [figure.as_json() for figure in self.figures],
            "left_out": [{**asdict(shape), "why": why} for shape, why in self.left_out.items()],
        }


def _measure(llm: LLM, spec: ModelSpec, repeats: int) -> ThroughputResult:
    """Every shape that fits, one after the other.

    Raises:
        CapacityError: none fits.
        OctavoError: the machine is too busy for a figure.
    """
    from octavo.cli.bench.measure import engine_in_words
    from octavo.cli.progress import run_progress

    left_out = {shape: why for shape in _SHAPES if (why := _why_not(llm, spec, shape))}
    fitting = [shape for shape in _SHAPES if shape not in left_out]
    if not fitting:
        raise CapacityError(f"nothing can be measured: {_listed(left_out)}; raise kv_memory or max_model_len")
    rng = random.Random(0)
    figures: list[Figure] = []
    with run_progress("throughput") as report:
        for shape in fitting:
            figures.append(_figure(llm, spec, shape, repeats, rng))
            report(len(figures), len(fitting))
    return ThroughputResult(engine_in_words(llm), repeats, figures, left_out)


def _why_not(llm: LLM, spec: ModelSpec, shape: Shape) -> str | None:
    """What this engine lacks for a shape; ``None`` if nothing."""
    from octavo.planner import blocks_of_load

    plan = llm.engine.plan
    if shape.num_tokens > plan.max_model_len:
        return f"needs {shape.num_tokens:,} tokens, the context has {plan.max_model_len:,}"
    limits = {"block_size": plan.block_size, "max_num_batched_tokens": plan.max_num_batched_tokens}
    held = blocks_of_load(spec, shape.num_tokens, shape.count, **limits)
    if held > plan.num_blocks - 1:
        return f"needs {held:,} blocks of KV memory, there are {plan.num_blocks - 1:,}"
    return None


def _figure(llm: LLM, spec: ModelSpec, shape: Shape, repeats: int, rng: random.Random) -> Figure:
    from octavo.cli.bench.measure import random_prompts, seconds, seconds_per_step
    from octavo.cli.bench.roofline import decode_step, measure_roof, prefill
    from octavo.planner import kv_formats

    times: list[float] = []
    roofs = [measure_roof(llm)]
    prompts = random_prompts(llm, rng, shape.count, shape.length)
    for _ in range(repeats):
        if shape.kind == "decode":
            times.append(seconds_per_step(llm, prompts, _STEPS))
        else:
            times.append(seconds(llm, random_prompts(llm, rng, shape.count, shape.length), 0))
        roofs.append(measure_roof(llm))
    if statistics.median(times) <= 0:
        raise OctavoError(
            f"{shape} cannot be measured: {_STEPS} steps took no longer than one, so this machine is busy with other "
            "things; try again later, or with more --repeats"
        )
    work = (
        decode_step(spec, kv_formats(spec, llm.engine.config), shape.count, shape.length + _STEPS / 2)
        if shape.kind == "decode"
        else prefill(spec, shape.count, shape.length)
    )
    return Figure(shape, work, times, [before.mean(after) for before, after in pairwise(roofs)])


def _show(result: ThroughputResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Tokens per second: {result.engine}", title_justify="left")
    for name in ("", "reached", "limit", "share", "bound by"):
        table.add_column(name, justify="right")
    for figure in result.figures:
        table.add_row(
            str(figure.shape),
            f"{figure.tokens_per_second:,.0f} tok/s",
            f"{figure.limit:,.0f} tok/s",
            f"{figure.share:.0%}",
            figure.bound,
        )
    console = Console()
    console.print(table)
    console.print(_in_words(result), highlight=False)


def _in_words(result: ThroughputResult) -> str:
    roofs = [roof for figure in result.figures for roof in figure.roofs]
    words = (
        f"Runs of each shape, whose median counts: {result.repeats}. The limit is what memory and arithmetic allow, "
        "measured around every run: "
        f"{_range([roof.bytes_per_second for roof in roofs])} GB/s read, "
        f"{_range([roof.operations_per_second for roof in roofs])} GFLOP/s in bfloat16."
    )
    return f"{words}\nLeft out: {_listed(result.left_out)}." if result.left_out else words


def _listed(left_out: dict[Shape, str]) -> str:
    return "; ".join(f"{shape} ({why})" for shape, why in left_out.items())


def _range(values: list[float]) -> str:
    return f"{min(values) / 1e9:,.1f} to {max(values) / 1e9:,.1f}"
