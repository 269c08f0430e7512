"""Pictures of what was measured, as PNG files. matplotlib is optional, and loaded only here and only to draw."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.files import check_file
from octavo.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from octavo.cli.bench.results import CacheResult, DiskResult, MemoryUse, PagingResult, PrefixResult, ServedUse
    from octavo.evaluate.report import Report

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to draw the picture, a .png file."),
]

_WITHOUT, _WITH, _FAINT = "#c0392b", "#1f6f8b", "#7f8c8d"
_INSTALL = "pip install matplotlib"


def place_for_picture(given: Path | None, default: str) -> Path | None:
    """Where a picture will go that is drawn unless nothing can draw it: what ``--output`` gave, else ``default``.

    Returns:
        ``None``, with a line on stderr, if matplotlib is missing and no picture was asked for by name.

    Raises:
        MissingPackageError, ConfigError: as :func:`check_picture`.
    """
    if given is None and not _can_draw():
        print(f"octavo: there will be no picture, for matplotlib is not installed ({_INSTALL})", file=sys.stderr)
        return None
    path = Path(default) if given is None else given
    check_picture(path, "--output")
    return path


def check_picture(path: Path, option: str) -> None:
    """See that a picture can be drawn and written there, before anything is measured for it.

    Args:
        option: what the command calls it.

    Raises:
        MissingPackageError: matplotlib is missing.
        ConfigError: no PNG file can be written there.
    """
    if not _can_draw():
        raise MissingPackageError(f"drawing needs matplotlib, which is not installed: {_INSTALL}")
    if path.suffix.lower() != ".png":
        raise ConfigError(f"a picture is a .png file; got {option} {str(path)!r}")
    check_file(path, option)


def _can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw_cache(result: CacheResult, path: Path) -> None:
    """Time per token against position: both ways on one scale, and beside it the cached way on its own.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure = _figure(
        f"A reply of {len(result.cached):,} tokens: {_factor(result.speedup)} times faster with the KV cache",
        f"Octavo, {result.engine}, greedy, prompt of {result.num_prompt_tokens:,} tokens; "
        "both ways give the same tokens, bit for bit",
    )
    both, alone = figure.subplots(1, 2, width_ratios=(2, 1))
    positions, milliseconds = result.positions, _milliseconds(result.cached)
    without = f"without the cache: {result.uncached_total:,.1f} s in all, {_slope(result.uncached_fit)}"
    if result.is_interpolated:
        without += f"\n(one step in {result.every:,} was run, the others' time is interpolated)"
    at = [positions[step] for step in result.steps]
    both.plot(at, _milliseconds(result.uncached), ".", ms=3, color=_WITHOUT, label=without)
    cached = f"with the cache: {result.cached_total:,.1f} s in all, {_slope(result.cached_fit)}"
    both.plot(positions, milliseconds, ".", ms=3, color=_WITH, label=cached)
    both.set_title("both ways, a dot for each token", loc="left", fontsize=10)
    both.legend(loc="upper left", frameon=False, markerscale=3)
    # The first token waits for the prompt, so it says nothing about a step.
    alone.plot(positions[1:], milliseconds[1:], ".", ms=3, color=_WITH)
    ends = [positions[1], positions[-1]]
    fit = result.cached_fit
    alone.plot(ends, _milliseconds([fit.intercept + fit.slope * end for end in ends]), color="black", lw=1, zorder=3)
    alone.set_title("with the cache, on its own scale, and its slope", loc="left", fontsize=10)
    alone.set_ylim(0, 2 * statistics.median(milliseconds[1:]))
    for axes in (both, alone):
        _axes(axes, "position (tokens of context)", "time per token (ms)")
    both.set_ylim(bottom=0)
    _save(figure, path)


def draw_prefix(result: PrefixResult, path: Path) -> None:
    """Time to first token against the share of the prompt that is cached.

    Raises:
        ConfigError: the file cannot be written.
    """
    first, last = result.points[0], result.points[-1]
    figure = _figure(
        f"Time to first token of a prompt of {result.num_prompt_tokens:,} tokens: "
        f"{_factor(first.median / last.median)} times sooner when all of it is cached",
        f"Octavo, {result.engine}; a line through the medians, dots for single runs",
    )
    axes = figure.subplots()
    shares = [point.percent for point in result.points]
    for run in zip(*(point.seconds for point in result.points), strict=True):
        axes.plot(shares, _milliseconds(run), ".", ms=4, color=_FAINT)
    medians = _milliseconds([point.median for point in result.points])
    axes.plot(shares, medians, "o-", color=_WITH)
    for share, median in ((shares[0], medians[0]), (shares[-1], medians[-1])):
        axes.annotate(f"{median:,.0f} ms", (share, median), (4, 8), textcoords="offset points")
    _axes(axes, "share of the prompt that is cached (%)", "time to first token (ms)")
    axes.set_ylim(0, 1.25 * max(medians))  # a run that was held up for seconds would squash all the others
    axes.set_xlim(-2, 106)
    _save(figure, path)


def draw_disk(result: DiskResult, path: Path) -> None:
    """Time to first token against the length of the prompt, by where its keys and values are.

    Raises:
        ConfigError: the file cannot be written.
    """
    longest = result.points[-1]
    sooner = longest.median("computed") / longest.median("disk, in the page cache")
    figure = _figure(
        f"A prompt of {longest.num_prompt_tokens:,} tokens answers {_factor(sooner)} times sooner from the disk",
        f"Octavo, {result.engine}; lines through the medians, dots for single prompts",
    )
    axes = figure.subplots()
    lengths = [point.num_prompt_tokens for point in result.points]
    colours = dict(zip(longest.seconds, (_WITHOUT, *_shades(len(longest.seconds) - 1)), strict=True))
    for way, colour in colours.items():
        for point in result.points:
            seconds = _milliseconds(point.seconds[way])
            axes.plot([point.num_prompt_tokens] * len(seconds), seconds, ".", ms=4, color=_FAINT)
        axes.plot(lengths, _milliseconds([p.median(way) for p in result.points]), "o-", color=colour, label=way)
    _axes(axes, "tokens of the prompt", "time to first token (ms)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.legend(frameon=False)
    _save(figure, path)


def draw_paging(result: PagingResult, path: Path) -> None:
    """What KV memory holds, sequences over time, and tokens per second: reserved and paged.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure = _figure(
        f"{len(result.load):,} mixed requests under equal KV memory: {_factor(result.speedup)} times faster when paged",
        f"Octavo, {result.engine}, memory for {result.paged.use.capacity:,} tokens; "
        f"reserved: {result.max_model_len:,} for each sequence; all runs give the same replies",
    )
    shares, running, speed = figure.subplots(1, 3, width_ratios=(4, 5, 2))
    _draw_shares(
        shares,
        {
            "reserved:\nlongest": result.contiguous.use,
            "power\nof two*": result.guesses["power_of_two"],
            "exactly*": result.guesses["exact"],
            "paged": result.paged.use,
        },
    )
    for place, way, color in ((0, result.contiguous, _WITHOUT), (1, result.paged, _WITH)):
        running.plot(*_running_over_time(way), color=color, drawstyle="steps-post")
        speed.bar(place, result.tokens_per_second(way), color=color, width=0.6)
        speed.plot([place] * len(way.seconds), [result.num_output_tokens / s for s in way.seconds], ".", color="black")
        speed.text(place, 0, f"{result.tokens_per_second(way):,.0f}\n", ha="center", color="white", fontweight="bold")
    running.set_title("sequences that run at once", loc="left", fontsize=10)
    speed.set_title("tokens per second", loc="left", fontsize=10)
    _axes(running, "seconds", "sequences")
    _axes(speed, "dots for single runs", "")
    speed.set_xticks((0, 1), ("reserved", "paged"))
    running.set_ylim(bottom=0)
    running.locator_params(axis="y", integer=True)
    _save(figure, path)


def _draw_shares(axes: Axes, uses: dict[str, MemoryUse]) -> None:
    parts = (
        ("real tokens", _WITH, [use.real for use in uses.values()]),
        ("kept for tokens to come", "#e0a458", [use.later for use in uses.values()]),
        ("kept, never used", _WITHOUT, [use.unused for use in uses.values()]),
        ("free", "#dfe4e6", [use.free for use in uses.values()]),
    )
    bottom = [0.0] * len(uses)
    for name, color, values in parts:
        percent = [100 * value for value in values]
        axes.bar(range(len(uses)), percent, bottom=bottom, color=color, width=0.7, label=name)
        bottom = [sum(pair) for pair in zip(bottom, percent, strict=True)]
    for place, use in enumerate(uses.values()):
        axes.text(place, 50 * use.real, f"{use.real:.0%}", ha="center", va="center", color="white", fontweight="bold")
    axes.set_title("KV memory while requests wait (* simulated)", loc="left", fontsize=10)
    _axes(axes, "", "share of the KV memory (%)")
    axes.set_xticks(range(len(uses)), list(uses))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize=8)


def _running_over_time(way: ServedUse) -> tuple[list[float], list[int]]:
    """As often as a picture can show it; between two steps a seat that was given up counts as taken."""
    every = max(len(way.moments) // 300, 1)
    running = [held.num_running for held in way.use.steps]
    spans = range(0, len(running), every)
    return [way.moments[first] for first in spans], [max(running[first : first + every]) for first in spans]


def draw_quality(report: Report, path: Path) -> None:
    """What each KV format costs in quality against what it takes in bytes: divergence, and perplexity.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure = _figure(
        "Quality against bytes: what a KV format costs this model",
        f"Octavo, {report.model}, {report.isa}, predicting {report.text}; against bf16, whose keys and values take "
        f"{report.formats[0].bytes_per_token:,} bytes per token",
    )
    divergence, perplexity = figure.subplots(1, 2)
    others = report.formats[1:]
    sizes = [each.bytes_per_token for each in others]
    for shade, context in zip(_shades(len(report.contexts)), report.contexts, strict=True):
        label = f"{context:,} tokens of context"
        drawn = {"ls": "", "marker": "o", "color": shade, "label": label}
        divergence.plot(sizes, [each.at(context).kl_mean for each in others], **drawn)
        above = [100 * report.perplexity_increase(each.kv_dtype, context) for each in others]
        perplexity.plot(sizes, above, **drawn)
    longest = report.contexts[-1]
    for each in others:
        heights = (each.at(longest).kl_mean, 100 * report.perplexity_increase(each.kv_dtype, longest))
        for axes, height in zip((divergence, perplexity), heights, strict=True):
            axes.annotate(each.kv_dtype, (each.bytes_per_token, height), (7, -3), textcoords="offset points")
    bf16 = (report.formats[0].bytes_per_token, 0)
    perplexity.plot(*bf16, "o", color=_FAINT)
    perplexity.annotate("bf16", bf16, (7, 5), textcoords="offset points")
    perplexity.axhline(0, color=_FAINT, lw=1)
    _axes(divergence, "bytes per token", "mean KL divergence from bf16 (nats)")
    _axes(perplexity, "bytes per token", "perplexity above bf16 (%)")
    divergence.set_yscale("log")
    divergence.legend(loc="upper right", frameon=False)
    for axes in (divergence, perplexity):
        axes.margins(x=0.2)
    _save(figure, path)


def _shades(count: int) -> list[str]:
    """Light to dark."""
    return [f"#{_WITH[1:]}{round(255 * (index + 1) / count):02x}" for index in range(count)]


def _figure(title: str, subtitle: str) -> Figure:
    # Not pyplot: it keeps figures, and looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=14, fontweight="bold")
    figure.text(0.0115, 0.905, subtitle, fontsize=9, color=_FAINT)
    return figure


def _axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, format="png", metadata={"Software": None})
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error
    print(f"octavo: the picture is in {path}", file=sys.stderr)


def _factor(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _slope(fit: statistics.LinearRegression) -> str:
    return f"{1e6 * fit.slope:+,.1f} µs per token of context"


def _milliseconds(seconds: list[float] | tuple[float, ...]) -> list[float]:
    return [1000 * second for second in seconds]
