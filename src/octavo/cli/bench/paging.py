"""``octavo bench paging``: one load under one KV memory, with contiguous reservations and in blocks."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.bench.results import MemoryUse, PagingResult, ServedUse
from octavo.cli.options import (
    BlockSize,
    Debug,
    Isa,
    Json,
    KV8BitLayers,
    KVDtype,
    ModelOption,
    NoKVQualityGate,
    Threads,
    given,
    kv_format,
)
from octavo.cli.pictures import Output, draw_paging, place_for_picture
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.bench.load import Run
    from octavo.engine.assemble import Assembly
    from octavo.planner.contiguous import Held, Lengths

_PICTURE = "bench-paging.png"
_LONGEST = 1024
_SEATS = 2
"""Contiguous sequences that the KV memory holds unless it is given."""


def paging(
    model: ModelOption = None,
    requests: Annotated[int, typer.Option(metavar="N", min=2, max=100_000, help="Requests of the load.")] = 48,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Draws the lengths and the prompts.")] = 0,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each way; their median counts.")] = 3,
    output: Output = None,
    as_json: Json = False,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"Memory for the KV cache, such as 512MiB. Default: room for {_SEATS} contiguous sequences.",
        ),
    ] = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    block_size: BlockSize = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Most tokens of prompt and reply together, which a contiguous sequence reserves. "
            f"Default: {_LONGEST:,}, or the model's context if that is less.",
        ),
    ] = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Serve a mixed load under equal KV memory, reserved and paged.

    Reserved: each sequence sets aside the longest context in one piece, as engines did before paging. Paged: it takes
    blocks as its tokens come. Shows how many sequences run at once, how much of the memory holds real tokens, and the
    tokens per second. Fails if a reply depends on the way. Draws a picture (bench-paging.png).
    """
    picture = place_for_picture(output, _PICTURE)
    options = given(
        kv_memory=kv_memory,
        block_size=block_size,
        max_model_len=max_model_len,
        threads=threads,
        isa=isa,
        **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate),
    )
    assembly = _start(model, options, requests)
    try:
        result = _measure(assembly, requests, seed, repeats)
    finally:
        assembly.engine.close()
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        _show(result)
    if picture is not None:
        draw_paging(result, picture)


def _start(model: str | None, options: dict[str, Any], requests: int) -> Assembly:
    """An engine in which KV memory alone limits how many sequences run.

    Raises:
        ModelError, ConfigError: as :class:`octavo.LLM`.
    """
    from octavo.cli.progress import byte_progress
    from octavo.cli.starting import open_assembly
    from octavo.config import EngineConfig
    from octavo.model.source import DEFAULT_MODEL, resolve_model
    from octavo.planner import bytes_per_block, kv_formats

    config = EngineConfig(**options)  # what is wrong with the options is said before anything is fetched
    name = DEFAULT_MODEL if model is None else model
    with byte_progress(f"fetching {name}") as report:
        spec = resolve_model(name, progress=report).spec
    longest = options.setdefault("max_model_len", min(_LONGEST, spec.max_position_embeddings))
    if config.kv_memory is None:
        blocks = _SEATS * len(spec.kv_groups) * -(-longest // config.block_size)
        size = bytes_per_block(spec, config.block_size, kv_formats(spec, config))
        options["kv_memory"] = (1 + blocks) * size  # the first is the null block
    most = min(requests, config.max_num_batched_tokens)
    return open_assembly(model, {**options, "max_num_seqs": most})


def _measure(assembly: Assembly, requests: int, seed: int, repeats: int) -> PagingResult:
    """Simulate the reservations, then serve the load both ways, in turns.

    Raises:
        CapacityError: the KV memory does not hold one sequence of the greatest length.
        ConfigError: memory limits nothing, for even reserved all requests fit at once.
        OctavoError: a reply differs between two runs, or the engine ran other sequences than were simulated.
    """
    from octavo.cli.bench.load import mixed_load
    from octavo.cli.bench.measure import engine_in_words, random_prompts

    summary, rng = assembly.summary, random.Random(seed)
    # Whole blocks: the run that measures its speed needs them.
    longest = -(-summary.max_model_len // summary.block_size) * summary.block_size
    capacity = _capacity(assembly)
    seats = capacity // longest
    if requests <= seats:
        raise ConfigError(
            f"KV memory of {summary.allocated_bytes:,} bytes holds {seats} sequences of {summary.max_model_len:,} "
            f"tokens at once, so it does not limit {requests} requests: raise --requests, or lower --kv-memory"
        )
    load = mixed_load(rng, requests, summary.max_model_len)
    prompts = [random_prompts(assembly, rng, 1, lengths.num_prompt_tokens)[0] for lengths in load]
    simulated = _simulate(assembly, load, longest, capacity)
    reserved, paged = _serve_in_turns(assembly, load, prompts, seats, repeats)
    _check(simulated["longest"].steps, reserved, paged)
    return PagingResult(
        engine=engine_in_words(assembly),
        kv_dtype=summary.kv_dtype,
        kv_bytes=summary.allocated_bytes,
        block_size=summary.block_size,
        max_model_len=summary.max_model_len,
        seed=seed,
        load=load,
        contiguous=_served(reserved, simulated.pop("longest")),
        guesses=simulated,
        paged=_served(paged, MemoryUse(capacity, _median(paged).steps)),
    )


def _capacity(assembly: Assembly) -> int:
    """Tokens that the KV memory holds in every layer, window or not: one in a contiguous piece has no way to leave."""
    kv = assembly.engine.kv
    return (kv.num_blocks - 1) // kv.num_groups * kv.block_size


def _simulate(assembly: Assembly, load: list[Lengths], longest: int, memory: int) -> dict[str, MemoryUse]:
    """What memory would hold, by how well the reservations are guessed."""
    from octavo.planner.contiguous import reserve_exactly, reserve_most, reserve_power_of_two, simulate

    reservations = {
        "longest": reserve_most(longest),
        "power_of_two": reserve_power_of_two(longest),
        "exact": reserve_exactly,
    }
    budget = assembly.engine.config.max_num_batched_tokens
    return {
        name: MemoryUse(memory, simulate(load, reserve, memory_tokens=memory, max_num_batched_tokens=budget))
        for name, reserve in reservations.items()
    }


def _serve_in_turns(
    assembly: Assembly, load: list[Lengths], prompts: list[list[int]], seats: int, repeats: int
) -> tuple[list[Run], list[Run]]:
    """The load with ``seats`` sequences at a time, and with as many as have blocks; ``repeats`` runs each.

    Both go first in turn: shared machines do not stay equally fast for minutes.
    """
    from octavo.cli.bench.load import serve
    from octavo.cli.progress import run_progress

    engine = assembly.engine
    serve(engine, load[:1], prompts[:1], 1)  # touches the weights
    reserved: list[Run] = []
    paged: list[Run] = []
    with run_progress("the load, reserved and paged") as report:
        for number in range(repeats):
            ways = [(reserved, seats), (paged, len(load))]
            for runs, most in reversed(ways) if number % 2 else ways:
                report(len(reserved) + len(paged), 2 * repeats)
                runs.append(serve(engine, load, prompts, most))
        report(2 * repeats, 2 * repeats)
    return reserved, paged


def _check(simulated: list[Held], reserved: list[Run], paged: list[Run]) -> None:
    """Every run gave the same replies, and what was reserved ran step by step as simulated."""
    for run in (*reserved, *paged):
        for number, (reply, first) in enumerate(zip(run.replies, reserved[0].replies, strict=True)):
            if reply != first:
                raise OctavoError(f"reply {number} differs between two runs of the same load")
    expected = [(held.num_running, held.num_waiting) for held in simulated]
    for run in reserved:
        if [(held.num_running, held.num_waiting) for held in run.steps] != expected:
            raise OctavoError("the engine ran other sequences than the simulation of contiguous reservations says")


def _median(runs: list[Run]) -> Run:
    """The run of median speed, the faster one of two."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def _served(runs: list[Run], use: MemoryUse) -> ServedUse:
    median = _median(runs)
    seconds = [run.seconds for run in runs]
    return ServedUse(use, seconds, median.moments, median.num_preemptions, median.num_recomputed_tokens)


def _show(result: PagingResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{len(result.load):,} requests, {result.kv_bytes:,} bytes of KV memory ({result.kv_dtype})",
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in ("running", "at most", "real", "kept, empty", "free", "tok/s"):
        table.add_column(name, justify="right")
    rows: list[tuple[str, MemoryUse, ServedUse | None]] = [
        ("reserved: longest", result.contiguous.use, result.contiguous),
        ("to a power of two", result.guesses["power_of_two"], None),
        ("exactly", result.guesses["exact"], None),
        ("paged", result.paged.use, result.paged),
    ]
    for name, use, served in rows:
        table.add_row(
            name,
            f"{use.mean_running:.1f}",
            f"{use.most_running:,}",
            *(f"{share:.1%}" for share in (use.real, use.later + use.unused, use.free)),
            "" if served is None else f"{result.tokens_per_second(served):,.0f}",
        )
    console = Console()
    console.print(table)
    console.print(_in_words(result), highlight=False)


def _in_words(result: PagingResult) -> str:
    paged, reserved, count = result.paged, result.contiguous, len(result.load)
    prompt, output = result.num_prompt_tokens / count, result.num_output_tokens / count
    return (
        f"Paged, the load is served {result.speedup:.2f} times as fast. When memory ran out, {paged.num_preemptions:,} "
        f"sequences were preempted and {paged.num_recomputed_tokens:,} tokens computed again. Of what sequences hold, "
        f"{paged.use.real_of_reserved:.1%} are real tokens; of reservations of {result.max_model_len:,} tokens, "
        f"{reserved.use.real_of_reserved:.1%}.\n"
        f"Prompts have {prompt:,.0f} tokens and replies {output:,.0f} on average. The sequences that run and the "
        "shares of the KV memory are means over the steps while requests wait. Rows without tokens per second are "
        "simulated, as if a reply's length were known that well. Runs of each way, whose median counts: "
        f"{len(paged.seconds)}. All of them gave the same replies."
    )
