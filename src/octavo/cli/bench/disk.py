"""``octavo bench disk``: time to first token of prompts that are computed, in memory, and on the disk."""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.bench.results import DISK_WAYS, DiskPoint, DiskResult
from octavo.cli.options import (
    Debug,
    Isa,
    Json,
    KV8BitLayers,
    KVDtype,
    KVMemory,
    ModelOption,
    NoKVQualityGate,
    Threads,
    given,
    kv_format,
)
from octavo.cli.pictures import Output, draw_disk, place_for_picture
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.llm import LLM

_PICTURE = "bench-disk.png"
_LENGTHS = (128, 512, 1024, 2048, 4000)


def disk(
    model: ModelOption = None,
    prompt_tokens: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", min=32, help="Tokens of a prompt; may be repeated. Default: several, as the context allows."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Prompts of each length; their median counts.")] = 3,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--kv-disk", metavar="DIR", help="Where blocks are kept meanwhile, in a folder that is deleted afterwards."
        ),
    ] = None,
    output: Output = None,
    as_json: Json = False,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Time the first token by where the prompt's keys and values are.

    Nowhere, so that they are computed; in memory; on the disk, in the page cache; on the disk alone, as far as the
    system can be asked to forget what it has read. Fails if the first token or its log-probability depends on it. Draws
    a picture (bench-disk.png).
    """
    from octavo.cli.starting import open_llm
    from octavo.config import user_cache

    picture = place_for_picture(output, _PICTURE)
    place = user_cache() if folder is None else folder
    try:
        place.mkdir(parents=True, exist_ok=True)
        kept = tempfile.TemporaryDirectory(prefix="bench-disk-", dir=place)
    except OSError as error:
        raise ConfigError(f"nothing can be kept in {str(place)!r}: {error.strerror}") from error
    options = given(
        kv_memory=kv_memory, threads=threads, isa=isa, **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate)
    )
    with kept, open_llm(model, {**options, "kv_disk": kept.name}) as llm:
        most = llm.engine.intake.max_request_tokens - 1
        lengths = sorted(set(prompt_tokens)) if prompt_tokens else [length for length in _LENGTHS if length <= most]
        result = _measure(llm, lengths or [most], repeats, Path(kept.name))
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        _show(result)
    if picture is not None:
        draw_disk(result, picture)


def _measure(llm: LLM, lengths: list[int], repeats: int, folder: Path) -> DiskResult:
    """Each prompt in each way, one after the other.

    Raises:
        ContextLengthError: a prompt is more than the context or the KV memory holds.
        OctavoError: the first token depends on where the keys and values were.
    """
    from octavo.cli.bench.measure import engine_in_words, random_prompts, seconds
    from octavo.cli.progress import run_progress

    rng = random.Random(0)
    for length in lengths:
        llm.engine.intake.check_prompt_length(length)
    seconds(llm, random_prompts(llm, rng, 1, lengths[0]), 1)  # touches the weights
    points = [DiskPoint(length) for length in lengths]
    with run_progress("time to first token") as report:
        for done, (point, _) in enumerate([(point, n) for point in points for n in range(repeats)], 1):
            [prompt] = random_prompts(llm, rng, 1, point.num_prompt_tokens)
            _measure_prompt(llm, prompt, point, folder)
            report(done, len(points) * repeats)
    return DiskResult(engine_in_words(llm), points)


def _measure_prompt(llm: LLM, prompt: list[int], point: DiskPoint, folder: Path) -> None:
    from octavo.cli.bench.measure import first_token

    firsts = set()
    for way in DISK_WAYS:
        if way == "computed":
            llm.reset_prefix_cache()
        elif way != "memory":
            llm.flush_kv_disk()
            llm.reset_prefix_cache()
        if way == "disk, not in the page cache":
            _forget_pages(folder)
        first = first_token(llm, prompt)
        firsts.add((first.token, first.logprob))
        point.seconds[way].append(first.seconds)
        point.num_cached_tokens[way] = first.num_cached_tokens
    if len(firsts) > 1:
        raise OctavoError(f"the first token of {len(prompt)} depends on where the prompt was kept: {sorted(firsts)}")


def _forget_pages(folder: Path) -> None:
    """Ask the system to drop what it has of the files in memory."""
    for path in folder.glob("*.slab"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _show(result: DiskResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Time to first token by where the prompt's keys and values are", title_justify="left")
    for name in ("prompt", *DISK_WAYS):
        table.add_column(name, justify="right")
    for point in result.points:
        cells = []
        for way in DISK_WAYS:
            sooner = point.median("computed") / point.median(way)
            note = "" if way == "computed" else f" ({sooner:.1f} x)"
            if way.startswith("disk") and point.was_computed(way):
                note = " (computed: quicker)"
            cells.append(f"{1000 * point.median(way):,.1f} ms{note}")
        table.add_row(f"{point.num_prompt_tokens:,} tokens", *cells)
    console = Console()
    console.print(table)
    console.print(
        f"Prompts of each length, whose median counts: {len(result.points[0].seconds['computed'])}. The first token "
        "and its log-probability are the same in every column, bit for bit.",
        highlight=False,
    )
