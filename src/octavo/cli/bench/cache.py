"""``octavo bench cache``: one long reply with the KV cache and, on the same engine, without it."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.bench.results import CacheResult
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
from octavo.cli.pictures import Output, draw_cache, place_for_picture
from octavo.errors import ContextLengthError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.progress import Report
    from octavo.engine.outputs import RequestOutput
    from octavo.engine.sampling_params import SamplingParams
    from octavo.llm import LLM

_PICTURE = "bench-cache.png"

_Token = tuple[int, float]
"""Token id and log-probability."""


def cache(
    model: ModelOption = None,
    tokens: Annotated[int, typer.Option(metavar="N", min=3, help="Tokens of the reply.")] = 1000,
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of the prompt.")] = 32,
    every: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Without the cache, run only one step in N and interpolate the others."),
    ] = 1,
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
    """Time a long reply with the KV cache and without it.

    Without it every step computes the whole context again. Both ways run on one engine, and the command fails if they
    do not give the same tokens and log-probabilities, bit for bit. Shows both total times, the time per token along
    the reply and its slope against position, and draws it all as a picture (bench-cache.png). With the defaults and
    the embedded model it takes some minutes on two processors; --every 10 takes a tenth of that.
    """
    from octavo.cli.starting import open_llm

    picture = place_for_picture(output, _PICTURE)
    options = given(
        kv_memory=kv_memory, threads=threads, isa=isa, **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate)
    )
    with open_llm(model, options) as llm:
        result = _measure(llm, tokens, prompt_tokens, every)
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        _show(result)
    if picture is not None:
        draw_cache(result, picture)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply with the cache: its tokens with their log-probabilities, and the seconds that each took."""

    tokens: list[_Token]
    seconds: list[float]


def _measure(llm: LLM, tokens: int, prompt_tokens: int, every: int) -> CacheResult:
    """Run both ways. The cached way runs before, amid and after the other, and a token counts with the median of its
    three times: shared machines do not stay equally fast for minutes, and one hiccup is as long as many tokens.

    Raises:
        ContextLengthError: prompt and reply are more than the context or the KV memory holds.
        OctavoError: the two ways do not give the same tokens and log-probabilities.
    """
    from octavo.cli.bench.measure import engine_in_words, random_prompts, seconds
    from octavo.cli.progress import token_progress

    [prompt] = random_prompts(llm, random.Random(0), 1, prompt_tokens)
    _check_room(llm, prompt, tokens)
    seconds(llm, [prompt], 2)  # touches the weights
    with token_progress("a reply with the cache") as report:
        replies = [_with_cache(llm, prompt, tokens, report)]
    steps = sorted({*range(0, tokens, every), tokens - 1})
    uncached: list[float] = []
    with token_progress("the same reply without the cache") as report:
        for half in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
            for step in half:
                uncached.append(_without_cache(llm, prompt, replies[0].tokens, step))
                report(len(uncached), len(steps))
            replies.append(_with_cache(llm, prompt, tokens))
    if any(reply.tokens != replies[0].tokens for reply in replies):
        raise OctavoError("the same reply, computed again with the cache, differs from the first one")
    cached = [statistics.median(times) for times in zip(*(reply.seconds for reply in replies), strict=True)]
    return CacheResult(engine_in_words(llm), prompt_tokens, every, cached, steps, uncached)


def _check_room(llm: LLM, prompt: list[int], tokens: int) -> None:
    try:
        llm.engine.intake.accept(prompt, _params(max_tokens=tokens))
    except ContextLengthError as error:
        raise ContextLengthError(
            f"{error} (--prompt-tokens and --tokens)", requested=error.requested, limit=error.limit
        ) from error


def _with_cache(llm: LLM, prompt: list[int], tokens: int, report: Report | None = None) -> _Reply:
    """The whole reply. What an earlier run left in the cache is not read, or the prompt would cost nothing."""
    reply = _Reply([], [])
    moment = time.perf_counter()
    for increment in llm.stream(prompt, _params(max_tokens=tokens, skip_reading_prefix_cache=True)):
        before, moment = moment, time.perf_counter()
        reply.seconds.append(moment - before)
        reply.tokens.append(_token_of(increment))
        if report is not None:
            report(len(reply.tokens), tokens)
    return reply


def _without_cache(llm: LLM, prompt: list[int], cached: list[_Token], step: int) -> float:
    """Seconds to compute output token ``step`` from the prompt and all of the reply before it, anew.

    Raises:
        OctavoError: it is not the token of the reply with the cache.
    """
    context = prompt + [token for token, _ in cached[:step]]
    began = time.perf_counter()
    [output] = llm.generate(context, _params(max_tokens=1, use_cache=False), use_tqdm=False)
    seconds = time.perf_counter() - began
    if _token_of(output) != cached[step]:
        raise OctavoError(
            f"token {step} of the reply differs: {cached[step]} with the cache, {_token_of(output)} without it "
            "(token id, log-probability)"
        )
    return seconds


def _token_of(output: RequestOutput) -> _Token:
    [answer] = output.outputs
    [token] = answer.token_ids
    assert answer.logprobs is not None  # they were asked for
    return token, answer.logprobs[0][token].logprob


def _params(**changes: Any) -> SamplingParams:
    from octavo.engine.sampling_params import SamplingParams

    return SamplingParams(temperature=0.0, logprobs=0, ignore_eos=True, **changes)


def _show(result: CacheResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"A reply of {len(result.cached):,} tokens to a prompt of {result.num_prompt_tokens:,}",
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in ("whole reply", "start", "middle", "end", "per token of context"):
        table.add_column(name, justify="right")
    rows = (
        ("with the cache", result.cached_total, result.cached[1:], result.cached_fit),
        ("without", result.uncached_total, result.uncached, result.uncached_fit),
    )
    for name, total, seconds, fit in rows:
        along = [f"{_short(1000 * value)} ms" for value in _start_middle_end(seconds)]
        table.add_row(name, f"{_short(total, 2)} s", *along, f"{_short(1e6 * fit.slope, sign='+')} µs")
    console = Console()
    console.print(table)
    console.print(_in_words(result), highlight=False)


def _short(number: float, digits: int = 1, sign: str = "") -> str:
    """As a table of 80 columns has room for, also where the model is large and every step takes seconds."""
    return f"{number:{sign},.{digits if abs(number) < 1000 else 0}f}"


def _in_words(result: CacheResult) -> str:
    words = (
        f"{result.speedup:.1f} times faster with the cache. Its reply was computed three times, and each token counts "
        "with its median. Start, middle and end are medians over a tenth of the reply each; the last column is the "
        "slope of the time per token against position, by least squares."
    )
    if result.is_interpolated:
        words += (
            f"\nWithout the cache {len(result.steps):,} of {len(result.cached):,} steps were run (one in "
            f"{result.every:,} and the last); the others' time is interpolated, in the total and the speed-up."
        )
    return (
        f"{words}\nEvery token that was computed without the cache, and its log-probability, is that of the reply with "
        "it, bit for bit."
    )


def _start_middle_end(seconds: list[float]) -> list[float]:
    """Medians of the first, the middle and the last tenth."""
    size = max(len(seconds) // 10, 1)
    middle = (len(seconds) - size) // 2
    parts = (seconds[:size], seconds[middle : middle + size], seconds[-size:])
    return [statistics.median(part) for part in parts]
