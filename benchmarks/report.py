"""The table of `benchmarks.compare`: what was measured, ratios, and the floors. Pure: measurements in, Markdown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.peers.shapes import Shape, Timing
from octavo.cli.bench.roofline import Roof, Work

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Floor:
    """How many times as fast as llama.cpp, or as the fastest peer, Octavo must be; and its least share of the roof."""

    ratio: float
    beside: Literal["llama.cpp", "best peer"] = "best peer"
    share: float = 0.0

    def __str__(self) -> str:
        share = f", {self.share:.0%} of the roof" if self.share else ""
        return f"{self.ratio} x {self.beside}{share}"


FLOORS = {
    "1x128": Floor(1.3, "llama.cpp", share=0.8),
    "16x128": Floor(1.5),
    "8x1024": Floor(1.8),
    "1x7900": Floor(1.8),
    "prefill-512": Floor(1.0),
    "prefill-1024": Floor(1.0),
    "ttft": Floor(1.3),
}
"""By the shape's name. The other shapes are measured and promised nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One shape: what every engine took in each round (``None``: it failed), in the same order of rounds.

    ``roofs``: what the machine gave around Octavo's measurements. ``work``: what one of them cannot avoid.
    """

    shape: Shape
    octavo: Sequence[Timing]
    peers: Mapping[str, Sequence[Timing | None]]
    roofs: Sequence[Roof]
    work: Work

    def ratio(self, peer: str) -> float | None:
        """How many times as fast as that peer Octavo is: the median over rounds, each measured within a minute or so.

        ``None``: the peer was never measured.
        """
        pairs = zip(self.octavo, self.peers.get(peer, ()), strict=False)
        ratios = [theirs.seconds / ours.seconds for ours, theirs in pairs if theirs is not None]
        return median(ratios) if ratios else None

    @property
    def best_peer(self) -> str | None:
        """The one with the least ratio. ``None``: no peer was measured."""
        ratios = {peer: ratio for peer in self.peers if (ratio := self.ratio(peer)) is not None}
        return min(ratios, key=lambda peer: ratios[peer]) if ratios else None

    @property
    def share(self) -> float:
        """Of what the machine's roof allows, reached by Octavo: the median over rounds."""
        pairs = zip(self.roofs, self.octavo, strict=True)
        return median([roof.least_seconds(self.work) / timing.seconds for roof, timing in pairs])

    @property
    def reached(self) -> bool | None:
        """Whether the floor holds; ``None``: there is none, or what it is held against was not measured."""
        floor = FLOORS.get(self.shape.name)
        beside = "llama.cpp" if floor and floor.beside == "llama.cpp" else self.best_peer
        ratio = None if beside is None else self.ratio(beside)
        if floor is None or ratio is None:
            return None
        return ratio >= floor.ratio and self.share >= floor.share


def tables(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Two tables: Octavo beside its peers, and beside the machine's roof."""
    return f"{_beside_peers(rows, peers)}\n\n{_beside_roof(rows)}\n"


def _beside_peers(rows: Sequence[Row], peers: Sequence[str]) -> str:
    lines = [["", "Octavo", *peers, "x llama.cpp", "x best peer", "floor", ""]]
    for row in rows:
        floor = FLOORS.get(row.shape.name)
        lines.append(
            [
                row.shape.title,
                f"**{_figure(row.shape, row.octavo)}**",
                *(_figure(row.shape, row.peers.get(peer, ())) for peer in peers),
                _ratio(row, "llama.cpp"),
                "–" if row.best_peer is None else f"{_ratio(row, row.best_peer)} ({row.best_peer})",
                "" if floor is None else str(floor),
                {None: "", True: "yes", False: "**no**"}[row.reached],
            ]
        )
    return _markdown(lines)


def _beside_roof(rows: Sequence[Row]) -> str:
    lines = [["Octavo", "must move", "must compute", "read bandwidth", "arithmetic", "of the roof", "bound by"]]
    for row in rows:
        roof = Roof(
            median([roof.bytes_per_second for roof in row.roofs]),
            median([roof.operations_per_second for roof in row.roofs]),
        )
        lines.append(
            [
                row.shape.title,
                f"{row.work.bytes / 1e6:,.0f} MB",
                f"{row.work.operations / GIGA:,.1f} GFLOP",
                f"{roof.bytes_per_second / GIGA:.1f} GB/s",
                f"{roof.operations_per_second / GIGA:.0f} GFLOP/s",
                f"{row.share:.0%}",
                roof.bound(row.work),
            ]
        )
    return _markdown(lines)


def _figure(shape: Shape, timings: Sequence[Timing | None]) -> str:
    """The median, in the unit of the shape."""
    measured = [timing for timing in timings if timing is not None]
    if not measured:
        return "–"
    seconds = median([timing.seconds for timing in measured])
    if shape.kind != "ttft":
        return f"{shape.num_timed_tokens / seconds:,.0f} tok/s"
    cold = median([timing.cold for timing in measured if timing.cold is not None])
    return f"{seconds * 1e3:,.0f} ms ({cold * 1e3:,.0f})"


def _ratio(row: Row, peer: str) -> str:
    ratio = row.ratio(peer)
    return "–" if ratio is None else f"{ratio:.2f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rest])
