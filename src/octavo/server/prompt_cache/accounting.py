"""Accounting: what a request is told the cache did for it: read, written for how long, and neither.

Over a prompt of ``total`` tokens with a highest entry A that is alive, a last breakpoint of an hour B and a last one of
five minutes C::

    |..... read .....|... written 1h ...|... written 5m ...|.... input ....|
    0                A                  B                  C           total

What was physically reused may end before A, if blocks were evicted: then so does what is reported as read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from octavo.server.config import ServerConfig
from octavo.server.prompt_cache.caching import Breakpoint, Caching, Kept
from octavo.server.prompt_cache.entries import Entries, Entry
from octavo.server.prompt_cache.history import Record

OPENAI_MINIMUM, OPENAI_STEP = 1024, 128
"""Of cached_tokens as OpenAI itself reports them: nothing below the one, in multiples of the other."""


@dataclass(frozen=True, slots=True)
class Figures:
    """``read``: tokens reported as read. ``written``: tokens written, by the seconds they are kept."""

    read: int
    written: Counter[int] = field(default_factory=Counter)


class CacheUse:
    """One prompt's use of the cache: made before it is queued, settled with its first output.

    Args:
        names: of what the prompt consists of; see :mod:`octavo.server.prompt_cache.contents`.

    Attributes:
        record: of the prompt and what is answered to it.
        retain: what the engine is to keep, as pairs of tokens and seconds.
    """

    def __init__(
        self,
        entries: Entries,
        config: ServerConfig,
        caching: Caching,
        breakpoints: Iterable[Breakpoint],
        record: Record,
        kept: Kept | None = None,
        names: Collection[bytes] = (),
    ) -> None:
        self._entries = entries
        self._caching = caching
        self._rounds = config.openai_usage == "rounded"
        self.record = record
        self._by_entries = _counts_entries(caching, config, kept)
        marks = list(breakpoints)
        self._marks = [mark for mark in marks if mark.num_tokens >= max(1, config.min_cache_tokens)]
        self._written = [mark for mark in self._marks if mark.is_written]
        self._hit: Entry | None = None
        if self._by_entries:
            self._hit = entries.longest(record.salt, record.prompt, self._marks, caching.look_back, names)
        record.by_entries = self._by_entries
        record.num_kept, record.kept_for = max(((mark.num_tokens, mark.ttl) for mark in self._written), default=(0, 0))
        record.num_short = max((mark.num_tokens for mark in marks if mark not in self._marks), default=0)
        self.retain = tuple((mark.num_tokens, float(mark.ttl)) for mark in self._written if mark.is_retained)
        if self._hit is not None:
            self.retain += ((self._hit.num_tokens, float(self._hit.ttl)),)
        self._covered = 0 if self._hit is None else self._hit.num_tokens
        if kept is not None:
            self._covered = max(self._covered, kept.num_tokens)
            if kept.num_tokens and kept.seconds > 0:
                self.retain += ((kept.num_tokens, kept.seconds),)

    def would_read(self, num_reused: int) -> int:
        """What counts as read if ``num_reused`` tokens are reused, before any rounding. Changes nothing."""
        return min(self._covered, num_reused) if self._by_entries else num_reused

    def settle(self, num_reused: int) -> Figures:
        """The first output has come, and ``num_reused`` tokens of the prompt were not computed for it.

        Mutates: from now on others can read what this request wrote.
        """
        record = self.record
        record.num_cached = num_reused
        record.num_read = read = self.would_read(num_reused)
        written: Counter[int] = Counter()
        end = max(read, self._end_of_hit(read, num_reused))
        for ttl in sorted({mark.ttl for mark in self._written}, reverse=True):
            last = max((mark.num_tokens for mark in self._written if mark.ttl == ttl), default=0)
            if last > end:
                written[ttl] = last - end
                end = last
        if self._hit is not None:
            self._entries.refresh(record.salt, self._hit, record.began)
        self._entries.write(record.salt, record.prompt, self._written, record.began)
        return Figures(self._as_reported(read), written)

    def _end_of_hit(self, read: int, num_reused: int) -> int:
        """Up to where nothing is written anew if all was reused that is covered; 0 if it was not.

        That may be beyond ``read``: the last token of a prompt is computed each time, and an entry that was written
        where more followed in its message ends before what closes the message.
        """
        if not self._by_entries or read < min(self._covered, len(self.record.prompt) - 1):
            return 0
        name = b"" if self._hit is None else self._hit.name
        same = [mark.num_tokens for mark in self._written if name and mark.name == name]
        return max([self._covered, *(end for end in same if end <= num_reused)])

    def _as_reported(self, read: int) -> int:
        if self._caching.contract == "openai" and self._rounds:
            return 0 if len(self.record.prompt) < OPENAI_MINIMUM else read // OPENAI_STEP * OPENAI_STEP
        return read


def _counts_entries(caching: Caching, config: ServerConfig, kept: Kept | None) -> bool:
    """Whether reads are reported as entries cover them, not all that was reused."""
    if caching.contract == "anthropic":
        return config.anthropic_usage == "contract"
    return caching.at_end is None and (bool(caching.marks) or kept is not None)
