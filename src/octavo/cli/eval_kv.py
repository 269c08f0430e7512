"""``octavo eval-kv``: what KV formats cost a model in quality, and what they save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.files import check_file
from octavo.cli.options import Debug, Isa, KV8BitLayers, ModelArgument, Threads
from octavo.cli.pictures import check_picture, draw_quality
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.evaluate.evaluation import Evaluation
    from octavo.evaluate.report import ContextQuality, Report
    from octavo.evaluate.text import Text


def eval_kv(
    model: ModelArgument = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text to predict, UTF-8. Default: the topics of Python's own help()."),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="KV formats, with commas between them; keys and values apart as int8:fp8. Default: all that the "
            "model can have. bf16 is always among them.",
        ),
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Lengths of context in tokens, with commas between them. Default: those of 512,2k,8k that the model "
            "goes to.",
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Most tokens of text for each length of context; one window at least."),
    ] = 12288,
    kv_8bit_layers: KV8BitLayers = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Where to write all figures as JSON.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to draw quality against bytes, a .png file. Needs matplotlib."),
    ] = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Measure what KV formats cost a model in quality.

    Shows for each format and length of context how well the model predicts a text (perplexity), how far it is from
    what it predicts with bf16 (KL divergence in nats, share of equal likeliest tokens), how well it recalls facts
    from all depths of the context (log-probability of the right answer, in nats), bytes per token, and tokens per
    second of decode. What was found is remembered, and lets a format with 4-bit keys start if it is good enough.
    With the defaults and the embedded model it takes some minutes on two processors.
    """
    from octavo.evaluate.text import default_text, read_text

    if picture is not None:
        check_picture(picture, "--picture")
    if json_file is not None:
        check_file(json_file, "--json")
    report, evaluation = _evaluate(
        model,
        default_text() if text is None else read_text(text),
        formats=None if formats is None else _split(formats),
        contexts=None if contexts is None else contexts.split(","),
        tokens=tokens,
        kv_8bit_layers=kv_8bit_layers,
        threads=threads,
        isa=isa,
    )
    _show(report, evaluation)
    if json_file is not None:
        _write(json_file, report)
    if picture is not None:
        draw_quality(report, picture)


_COLUMNS = (
    *("bytes per\ntoken", "perplexity", "against\nbf16", "mean\nKL", "99 %\nKL", "same\ntop token"),
    *("recall", "decode\ntok/s"),
)


def _evaluate(
    model: str | None,
    text: Text,
    *,
    formats: list[str] | None,
    contexts: list[str] | None,
    tokens: int,
    kv_8bit_layers: tuple[int, ...] | None,
    threads: int | None,
    isa: str | None,
) -> tuple[Report, Evaluation]:
    from octavo.cli.progress import byte_progress, token_progress
    from octavo.config import parse_tokens
    from octavo.evaluate.evaluation import check_start, prepare
    from octavo.model.source import DEFAULT_MODEL, resolve_model
    from octavo.model.weights import load_model

    check_start(threads=threads, isa=isa)
    name = DEFAULT_MODEL if model is None else model
    with byte_progress(f"fetching {name}") as report_bytes:
        source = resolve_model(name, progress=report_bytes)
    evaluation = prepare(
        source,
        formats,
        text=text,
        contexts=None if contexts is None else [parse_tokens(context) for context in contexts],
        max_tokens=tokens,
        kv_8bit_layers=kv_8bit_layers,
    )
    with byte_progress(f"loading {name}") as report_bytes:
        loaded = load_model(source, threads=threads, isa=isa, progress=report_bytes)
    with token_progress(f"evaluating {', '.join(evaluation.formats)}, all together") as report_tokens:
        return evaluation.run(loaded, report_tokens), evaluation


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _show(report: Report, evaluation: Evaluation) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for context in report.contexts:
        title = f"{report.model} at {context:,} tokens of context"
        # Narrow: all of it has room in 80 columns.
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
        table.add_column("", no_wrap=True)
        for name in _COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for each in report.formats:
            quality = each.at(context)
            table.add_row(each.kv_dtype, f"{each.bytes_per_token:,}", *_cells(report, each.kv_dtype, quality))
        console.print(table)
    console.print(_in_words(report, evaluation), highlight=False)


def _cells(report: Report, kv_dtype: str, quality: ContextQuality) -> list[str]:
    recall = "" if quality.recall is None else f"{quality.recall.logprob:.2f}"
    return [
        f"{quality.perplexity:.3f}",
        f"{report.perplexity_increase(kv_dtype, quality.context):+.2%}",
        f"{quality.kl_mean:.4f}",
        f"{quality.kl_p99:.4f}",
        f"{quality.top1_agreement:.2%}",
        recall,
        f"{quality.decode_tokens_per_second:,.0f}",
    ]


def _in_words(report: Report, evaluation: Evaluation) -> str:
    from octavo.evaluate.gate import verdict
    from octavo.planner import needs_evaluation

    predicted = ", ".join(f"{quality.num_tokens:,}" for quality in report.formats[0].contexts)
    lines = [
        f"Predicted tokens of {report.text}: {predicted}. KL is from bf16, in nats; recall is the mean "
        f"log-probability of a right answer. {report.isa}, {report.threads} threads."
    ]
    for name, layers in evaluation.formats.items():
        kept = [index for index, layer in enumerate(layers) if str(layer) != name]
        if kept:
            lines.append(f"{name} has 8 bits in layer{'s' if len(kept) > 1 else ''} {', '.join(map(str, kept))}.")
        if needs_evaluation(layers):
            lines.append(f"{name} {verdict(report.only(name), evaluation.source.spec)}.")
    return "\n".join(lines)


def _write(path: Path, report: Report) -> None:
    try:
        path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error
