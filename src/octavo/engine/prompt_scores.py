"""Log-probabilities of prompt tokens, collected while the prompt is computed chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from octavo.engine.outputs import Logprob, TokenLogprobs
from octavo.engine.request import RequestGroup
from octavo.engine.scheduler import SchedulerOutput
from octavo.model.runner import Int32s, Scores

TokenText = Callable[[int], str | None]


class ScoreBatch(NamedTuple):
    """Rows of a step's tokens, the prompt token that follows each, and whose prompt it is."""

    rows: Int32s
    targets: Int32s
    num_top: int
    groups: list[RequestGroup]


def rows_to_score(output: SchedulerOutput) -> ScoreBatch | None:
    """What to score of a scheduled step, before :meth:`Scheduler.advance`; ``None`` if nobody asked.

    Row i of a prompt scores token i + 1. A position that was scored before a preemption is not scored again.
    """
    rows: list[int] = []
    targets: list[int] = []
    groups: list[RequestGroup] = []
    num_top = 0
    first_row = 0
    for request, count in zip(output.requests, output.num_tokens, strict=True):
        group = request.group
        # Siblings that use no cache compute the same prompt side by side; one of them is enough.
        if group.prompt_logprobs is not None and group not in groups:
            num_top = max(num_top, group.params.prompt_logprobs or 0)
            start = request.num_computed_tokens
            scored = len(group.prompt_logprobs)  # the entry of token 0 is there from the beginning
            for position in range(max(start, scored - 1), min(start + count, group.num_prompt_tokens - 1)):
                rows.append(first_row + position - start)
                targets.append(group.prompt_token_ids[position + 1])
                groups.append(group)
        first_row += count
    if not rows:
        return None
    return ScoreBatch(np.array(rows, np.int32), np.array(targets, np.int32), num_top, groups)


def collect_scores(batch: ScoreBatch, scores: Scores, token_text: TokenText) -> None:
    """Append what the native core scored to each group's ``prompt_logprobs``."""
    logprobs, ranks = scores.logprobs.tolist(), scores.ranks.tolist()
    top_ids, top_logprobs = scores.top_ids.tolist(), scores.top_logprobs.tolist()
    for index, group in enumerate(batch.groups):
        assert group.prompt_logprobs is not None
        group.prompt_logprobs.append(
            token_logprobs(
                int(batch.targets[index]),
                logprobs[index],
                ranks[index],
                top_ids[index],
                top_logprobs[index],
                group.params.prompt_logprobs or 0,
                token_text,
            )
        )


def token_logprobs(
    token: int,
    logprob: float,
    rank: int,
    top_ids: list[int],
    top_logprobs: list[float],
    num_top: int,
    token_text: TokenText,
) -> TokenLogprobs:
    """The token that stands at a position first, then the ``num_top`` likeliest ones."""
    entry = {token: Logprob(logprob, rank, token_text(token))}
    for place in range(num_top):
        other = top_ids[place]
        if other >= 0 and other not in entry:
            entry[other] = Logprob(top_logprobs[place], place + 1, token_text(other))
    return entry
