"""Explain: why a prompt is reused as far as it is and no further, worked out from what is remembered anyway.

The prompt is compared with all that the same tenant sent before. Between what is reused, what was computed once, and
the first token that was never computed after these, every token has one cause::

    |... reused ...|... was computed, is not there ...|... differs, or was not sent before ...|last|
    0             hit                               seen                                     n - 1  n

Nothing of another tenant's is looked at, so nothing here depends on it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from octavo.server.prompt_cache.entries import Entry, digests
from octavo.server.prompt_cache.history import Record
from octavo.text.common_prefix import common_prefix

CauseKind: TypeAlias = Literal[
    "differs",
    "not_seen",
    "evicted",
    "flushed",
    "not_finished",
    "expired",
    "not_read",
    "too_short",
    "last_token",
    "other_format",
    "other_tenant",
]


class Cause(NamedTuple):
    """Why tokens ``start`` up to ``end`` are not reused, or not counted. ``tenant``: who holds them."""

    kind: CauseKind
    start: int
    end: int
    message: str
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """An earlier prompt, with its answer, beside the one to be explained.

    Attributes:
        output: which of its answers is most alike; ``None``: the prompt already differs, or has no answer.
        num_shared: tokens that both begin with.
        num_computed: those of them whose keys and values were computed: all but the last token of an answer.
        differs: whether they differ there; otherwise one goes on where the other ended.
    """

    record: Record
    output: int | None
    num_shared: int
    num_computed: int
    differs: bool

    @property
    def tokens(self) -> array[int]:
        """Of the prompt and that answer."""
        prompt, outputs = self.record.prompt, self.record.outputs
        return prompt if self.output is None else prompt + outputs[self.output]


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be explained, as of one moment.

    Attributes:
        record: of the prompt; ``num_cached`` and ``num_read`` are known.
        earlier: what its tenant sent before, the newest first.
        flushes: when the cache was flushed.
        entries: that live, of the same cache; ``None``: it is about the past, and which lived then is not known.
        at: when, in seconds of the history's clock.
    """

    record: Record
    earlier: Sequence[Record]
    flushes: Collection[float]
    entries: Sequence[Entry] | None
    at: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """``closest``: the earlier prompt that is most alike; ``None``: none begins alike, or more than that was reused."""

    closest: Seen | None
    causes: list[Cause]


def explain(question: Question) -> Explanation:
    """Compare, and name the causes in the order of their tokens. Milliseconds for a thousand long prompts.

    Changes nothing. Records that are still being filled may be read meanwhile.
    """
    tokens = question.record.prompt
    seen = [found for record in question.earlier if (found := beside(tokens, record)).num_shared]
    closest = max(seen, key=lambda found: (found.num_shared, found.differs), default=None)
    if closest is not None and closest.num_shared < _hit(question):
        closest = None
    causes = sorted([*_not_reused(question, seen, closest), *_not_counted(question, seen)], key=_tokens)
    return Explanation(closest, causes)


def beside(tokens: array[int], record: Record) -> Seen:
    """``record`` beside a prompt of ``tokens``."""
    shared = common_prefix(tokens, record.prompt)
    if shared < len(record.prompt) or not record.outputs:
        return Seen(record, None, shared, shared, shared < min(len(tokens), len(record.prompt)))
    rest = tokens[shared:]
    lengths = [common_prefix(rest, output) for output in record.outputs]
    best = max(range(len(lengths)), key=lengths.__getitem__)
    length, output = lengths[best], record.outputs[best]
    computed = shared + min(length, max(len(output) - 1, 0))
    return Seen(record, best, shared + length, computed, length < min(len(rest), len(output)))


def covering(entries: Iterable[Entry], tokens: Sequence[int]) -> list[Entry]:
    """Those of ``entries`` that ``tokens`` begin with, the shortest first."""
    found = list(entries)
    known = dict(digests(tokens, {entry.num_tokens for entry in found}))
    return sorted(
        (entry for entry in found if known.get(entry.num_tokens) == entry.digest), key=lambda entry: entry.num_tokens
    )


def _hit(question: Question) -> int:
    return question.record.num_cached or 0


def _not_reused(question: Question, seen: Sequence[Seen], closest: Seen | None) -> Iterator[Cause]:
    """Causes of what is computed."""
    record, hit = question.record, _hit(question)
    last = len(record.prompt) - 1
    if not record.reads:
        yield Cause("not_read", 0, last, "what is cached is not read: the request, or this server, is set so")
    else:
        begin = hit
        for kind, end in _lost(question, seen):
            end = min(end, last)
            if end > begin:
                yield Cause(kind, begin, end, _LOST[kind])
                begin = end
        if begin < last:
            yield _new(begin, last, closest)
    yield Cause("last_token", last, last + 1, "the last token is computed each time, for what comes after it")


def _lost(question: Question, seen: Sequence[Seen]) -> Iterator[tuple[CauseKind, int]]:
    """Up to where tokens were computed, or are being computed, by why they are not there all the same."""
    ends: dict[CauseKind, int] = {}
    for found in seen:
        kind, ended = _whereabouts(question, found.record), found.num_computed
        ends[kind] = max(ends.get(kind, 0), ended)
    for kind in _LOST:
        yield kind, ends.get(kind, 0)


def _whereabouts(question: Question, earlier: Record) -> CauseKind:
    """Why nothing is there that ``earlier`` computed, should nothing be there."""
    if earlier.ended is None or earlier.ended > question.at:
        return "not_finished"
    ended = earlier.ended
    return "flushed" if any(ended <= flush <= question.at for flush in question.flushes) else "evicted"


_LOST: dict[CauseKind, str] = {
    "not_finished": "a request that is under way is computing these tokens; they can be reused once it has",
    "evicted": "these tokens were computed before, and memory was needed for others since",
    "flushed": "these tokens were computed before, and the cache was flushed since",
}


def _new(begin: int, end: int, closest: Seen | None) -> Cause:
    if closest is not None and closest.differs:
        what = "the prompt" if closest.output is None else "the answer"
        message = f"from token {closest.num_shared} on, this is another text than {what} of {closest.record.request_id}"
        return Cause("differs", begin, end, message)
    if closest is not None and closest.num_shared:
        message = f"the prompt goes on where {closest.record.request_id} ended; this was not sent before"
        return Cause("not_seen", begin, end, message)
    return Cause("not_seen", begin, end, "this was not sent before, or is not remembered")


def _not_counted(question: Question, seen: Sequence[Seen]) -> Iterator[Cause]:
    """Causes of what is reused, or kept, and does not count in what the API reports."""
    record = question.record
    if record.num_short:
        yield Cause(
            "too_short",
            0,
            record.num_short,
            "the API counts nothing at this breakpoint, which has fewer tokens than --min-cache-tokens before it; "
            "they are reused all the same",
        )
    hit, read = _hit(question), record.num_read or 0
    if not record.by_entries or read >= hit:
        return
    kept = [found for found in seen if read < found.record.num_kept <= found.num_shared]
    longest = max(kept, key=lambda found: found.record.num_kept, default=None)
    if longest is None:
        ends = f"what is kept ends at token {read}" if read else "nothing is kept of it"
        yield Cause("not_read", read, hit, f"{ends}, so the API counts no more as read; it is reused all the same")
        return
    length = longest.record.num_kept
    end = min(hit, length)
    if _lives(question, [found.record for found in kept], length):
        why = f"what is kept, {length} tokens, is out of reach of this request's breakpoints; it is reused all the same"
        yield Cause("not_read", read, end, why)
    elif any(longest.record.began <= flush <= question.at for flush in question.flushes):
        yield Cause("flushed", read, end, "what was kept was flushed since, so the API counts nothing of it as read")
    else:
        why = f"what was kept, {length} tokens, was so until its time was over; it is reused all the same"
        yield Cause("expired", read, end, why)


def _lives(question: Question, writers: Sequence[Record], length: int) -> bool:
    """Whether the entry of ``length`` tokens that ``writers`` wrote is alive."""
    if question.entries is not None:
        return any(entry.num_tokens == length for entry in question.entries)
    uses = [record.began + record.kept_for for record in writers if record.num_kept == length]
    return max(uses, default=0.0) > question.at


def _tokens(cause: Cause) -> tuple[int, int]:
    return cause.start, cause.end
