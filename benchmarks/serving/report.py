"""The tables of `benchmarks.serve`. Pure: measurements in, Markdown out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.serving.chat import ChatRound
from benchmarks.serving.overhead import NUM_STREAMS, NUM_TOKENS, Pair

MOST_TIMES_AS_LONG = 1.1
MOST_ADDED_SECONDS = 0.010
LEAST_REQUESTS_RATIO = 2.0
MOST_FIRST_RATIO = 0.5

Rounds = Mapping[str, Sequence[ChatRound | None]]
"""By server, in the same order of rounds; ``None``: it failed in that round."""


def overhead_table(streams: Sequence[Pair], firsts: Sequence[Pair]) -> str:
    """Octavo over HTTP beside `LLM` in one process: medians, and what HTTP adds in the median pair."""
    num_tokens = NUM_STREAMS * NUM_TOKENS
    ratio, added = median(pair.ratio for pair in streams), median(pair.added for pair in firsts)
    llm, http = (median(values) for values in zip(*((pair.llm, pair.http) for pair in firsts), strict=True))
    rates = (median(num_tokens / pair.llm for pair in streams), median(num_tokens / pair.http for pair in streams))
    lines = [
        ["", "LLM", "HTTP", "HTTP adds", "allowed", ""],
        [
            f"{NUM_STREAMS} streams x {NUM_TOKENS} tokens",
            *(f"{rate:,.0f} tok/s" for rate in rates),
            f"{ratio - 1:+.1%} time",
            f"{MOST_TIMES_AS_LONG - 1:.0%}",
            _yes(ratio <= MOST_TIMES_AS_LONG),
        ],
        [
            "first token of a cached prompt",
            f"{llm * 1e3:.1f} ms",
            f"{http * 1e3:.1f} ms",
            f"{added * 1e3:+.1f} ms",
            f"{MOST_ADDED_SECONDS * 1e3:.0f} ms",
            _yes(added <= MOST_ADDED_SECONDS),
        ],
    ]
    share = median(pair.client / pair.http for pair in streams)
    return f"{_markdown(lines)}\n\nThe client kept one processor busy for {share:.1%} of the time of the streams.\n"


def chat_table(rounds: Rounds, octavo: str) -> str:
    """A line per server, and Octavo's ratios to the best peer."""
    heads = ["", "requests/s", "tokens/s", "first token, median", "95 %", "prompt tokens", "cached", "client busy"]
    lines = [heads]
    for name, all_of_it in rounds.items():
        done = [each for each in all_of_it if each is not None]
        lines.append([name, *(_cells(done) if done else ["–"] * (len(heads) - 1))])
    return f"{_markdown(lines)}\n\n{_verdict(rounds, octavo)}\n"


def best_peer(rounds: Rounds, octavo: str, figure: Callable[[ChatRound], float]) -> tuple[str, float] | None:
    """The peer whose figure is most times Octavo's, and how many times: the median of the rounds.

    ``None``: no peer was measured.
    """
    ratios = {}
    for name, theirs in rounds.items():
        pairs = zip(rounds[octavo], theirs, strict=True)
        both = [figure(their) / figure(our) for our, their in pairs if our is not None and their is not None]
        if name != octavo and both:
            ratios[name] = median(both)
    return max(ratios.items(), key=lambda item: item[1], default=None)


def _cells(done: Sequence[ChatRound]) -> list[str]:
    return [
        f"{median(each.requests_per_second for each in done):.2f}",
        f"{median(each.tokens_per_second for each in done):,.0f}",
        f"{median(each.median_first for each in done) * 1e3:,.0f} ms",
        f"{median(each.p95_first for each in done) * 1e3:,.0f} ms",
        f"{median(each.num_prompt_tokens for each in done):,.0f}",
        f"{median(each.cached_share for each in done):.0%}",
        f"{median(each.client_seconds / each.seconds for each in done):.1%}",
    ]


def _verdict(rounds: Rounds, octavo: str) -> str:
    requests = best_peer(rounds, octavo, lambda each: each.requests_per_second)
    # As a rate, so that the best is the greatest here too.
    firsts = best_peer(rounds, octavo, lambda each: 1 / each.median_first)
    if requests is None or firsts is None:
        return "No peer was measured."
    times, share = 1 / requests[1], firsts[1]
    lines = [
        ["Octavo beside the best peer", "", "floor", ""],
        [
            "requests per second",
            f"{times:.2f} x {requests[0]}",
            f"{LEAST_REQUESTS_RATIO:.1f} x",
            _yes(times >= LEAST_REQUESTS_RATIO),
        ],
        [
            "median time to first token",
            f"{share:.2f} x {firsts[0]}",
            f"{MOST_FIRST_RATIO:.1f} x",
            _yes(share <= MOST_FIRST_RATIO),
        ],
    ]
    return _markdown(lines)


def _yes(reached: bool) -> str:
    return "yes" if reached else "**no**"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rest])
