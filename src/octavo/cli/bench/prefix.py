"""``octavo bench prefix``: time to first token against the share of the prompt that is cached."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.bench.results import Point, PrefixResult
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
from octavo.cli.pictures import Output, draw_prefix, place_for_picture
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.cli.bench.measure import FirstToken
    from octavo.llm import LLM

_PICTURE = "bench-prefix.png"
_PERCENT = range(0, 101, 10)


def prefix(
    model: ModelOption = None,
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=10, help="Tokens of the prompt.")] = 2000,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each share; their median counts.")] = 5,
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
    """Time the first token by the share of a prompt that is cached.

    From none of the prompt to all of it, in steps of a tenth. Before each run the cache is emptied and filled with
    that share. Fails if the first token or its log-probability depends on the share. Draws a picture
    (bench-prefix.png).
    """
    from octavo.cli.starting import open_llm

    picture = place_for_picture(output, _PICTURE)
    options = given(
        kv_memory=kv_memory, threads=threads, isa=isa, **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate)
    )
    with open_llm(model, options) as llm:
        result = _measure(llm, prompt_tokens, repeats)
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        _show(result)
    if picture is not None:
        draw_prefix(result, picture)


def _measure(llm: LLM, prompt_tokens: int, repeats: int) -> PrefixResult:
    """Every share in turn, ``repeats`` times, each time with another prompt.

    Raises:
        ContextLengthError: the prompt is more than the context or the KV memory holds.
        OctavoError: the first token depends on what was cached.
    """
    from octavo.cli.bench.measure import engine_in_words, random_prompts, seconds
    from octavo.cli.progress import run_progress

    rng = random.Random(0)
    seconds(llm, random_prompts(llm, rng, 1, prompt_tokens), 1)  # touches the weights
    rounds: list[list[FirstToken]] = []
    with run_progress("time to first token") as report:
        for _ in range(repeats):
            [prompt] = random_prompts(llm, rng, 1, prompt_tokens)
            rounds.append([])
            for percent in _PERCENT:
                rounds[-1].append(_first_token(llm, prompt, prompt_tokens * percent // 100))
                report(len(_PERCENT) * (len(rounds) - 1) + len(rounds[-1]), len(_PERCENT) * repeats)
            _check(rounds[-1])
    points = [
        Point(percent, runs[0].num_cached_tokens, [run.seconds for run in runs])
        for percent, runs in zip(_PERCENT, zip(*rounds, strict=True), strict=True)
    ]
    return PrefixResult(engine_in_words(llm), prompt_tokens, points)


def _first_token(llm: LLM, prompt: list[int], num_cached: int) -> FirstToken:
    """Empty the cache, compute the first ``num_cached`` tokens of the prompt, and then ask."""
    from octavo.cli.bench.measure import first_token, seconds

    llm.reset_prefix_cache()
    if num_cached:
        seconds(llm, [prompt[:num_cached]], 0)
    return first_token(llm, prompt)


def _check(firsts: list[FirstToken]) -> None:
    for first in firsts:
        if (first.token, first.logprob) != (firsts[0].token, firsts[0].logprob):
            raise OctavoError(
                f"the first token with {first.num_cached_tokens} tokens cached is {first.token} with log-probability "
                f"{first.logprob}; with {firsts[0].num_cached_tokens} it is {firsts[0].token} with {firsts[0].logprob}"
            )


def _show(result: PrefixResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Time to first token of a prompt of {result.num_prompt_tokens:,} tokens", title_justify="left")
    for name in ("cached", "read from the cache", "computed", "first token after", "sooner"):
        table.add_column(name, justify="right")
    for point in result.points:
        table.add_row(
            f"{point.percent} %",
            f"{point.num_cached_tokens:,} tokens",
            f"{result.num_prompt_tokens - point.num_cached_tokens:,}",
            f"{1000 * point.median:,.1f} ms",
            f"{result.points[0].median / point.median:.1f} x",
        )
    console = Console()
    console.print(table)
    console.print(
        f"Runs of each share, whose median counts: {len(result.points[0].seconds)}. The first token and its "
        "log-probability are the same in every row, bit for bit.",
        highlight=False,
    )
