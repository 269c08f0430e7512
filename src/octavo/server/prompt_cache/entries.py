"""Entries: which prefixes of prompts are kept, and until when, as the APIs' contracts count it.

A prefix is one of tokens, and of whole blocks: where a block's text has become longer its tokens may well begin with
the old ones, but it is another block, and no entry covers it. So an entry has the name of its blocks too.

An entry is a promise about what is reported, not a block: what is physically in the cache is the engine's affair, and
:mod:`octavo.server.prompt_cache.accounting` reports no more than both.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from octavo.server.prompt_cache.caching import Breakpoint

MAX_ENTRIES = 10_000
"""Of one tenant. With more than that those go first that were not read for longest."""
_Key = tuple[int, bytes, bytes]


@dataclass(slots=True)
class Entry:
    """A prefix of ``num_tokens`` tokens that can be read until ``expires``.

    Attributes:
        digest: SHA-256 of its tokens.
        name: of its blocks; empty where there are none.
        position: of the mark that wrote it.
        ttl: seconds it lives from the start of the request that wrote it or read it last.
    """

    num_tokens: int
    digest: bytes
    name: bytes
    position: int
    ttl: int
    expires: float

    @property
    def key(self) -> _Key:
        return self.num_tokens, self.digest, self.name


class Entries:
    """The entries of every tenant, each tenant's apart. Lives on one event loop, so it needs no lock.

    Args:
        clock: seconds; it never goes back.
        max_entries: of one tenant.
    """

    def __init__(self, clock: Callable[[], float], max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._shelves: dict[bytes, _Shelf] = {}

    def longest(
        self,
        salt: bytes,
        tokens: Sequence[int],
        breakpoints: Iterable[Breakpoint],
        look_back: int,
        names: Collection[bytes] = (),
    ) -> Entry | None:
        """The longest live entry that ``tokens`` begin with and that can be read at one of ``breakpoints``: it ends
        there, or fewer than ``look_back`` positions before. ``names``: of all that these tokens are made of.
        """
        shelf = self._shelves.get(salt)
        if shelf is None:
            return None
        shelf.drop_expired(self._clock())
        marks = list(breakpoints)
        furthest = max((mark.num_tokens for mark in marks), default=0)
        lengths = [length for length in shelf.lengths if length <= furthest]
        for length, digest in reversed(list(digests(tokens, lengths))):
            for entry in shelf.lengths[length].get(digest, ()):
                is_whole = not entry.name or entry.name in names
                if is_whole and any(_can_read(mark, entry, look_back) for mark in marks):
                    return entry
        return None

    def write(self, salt: bytes, tokens: Sequence[int], breakpoints: Iterable[Breakpoint], started: float) -> None:
        """Keep the prefixes of ``tokens`` that end at ``breakpoints``; their time counts from ``started``.

        One that is there already lives on, at least as long as it was promised.
        """
        marks = [mark for mark in breakpoints if mark.num_tokens <= len(tokens)]
        if not marks:
            return
        shelf = self._shelves.setdefault(salt, _Shelf())
        found = dict(digests(tokens, {mark.num_tokens for mark in marks}))
        for mark in marks:
            digest = found[mark.num_tokens]
            known = shelf.order.get((mark.num_tokens, digest, mark.name))
            if known is None:
                shelf.add(Entry(mark.num_tokens, digest, mark.name, mark.position, mark.ttl, started + mark.ttl))
            else:
                known.ttl = max(known.ttl, mark.ttl)
                self.refresh(salt, known, started)
        while len(shelf.order) > self._max_entries:
            shelf.remove(next(iter(shelf.order)))
        shelf.drop_expired(self._clock())
        if not shelf.order:
            del self._shelves[salt]

    def refresh(self, salt: bytes, entry: Entry, started: float) -> None:
        """``entry`` was read by a request that began at ``started``. Nothing happens if it is gone."""
        shelf = self._shelves.get(salt)
        if shelf is not None:
            shelf.prolong(entry, started + entry.ttl)

    def live(self, salt: bytes) -> Iterator[Entry]:
        """All that live of one tenant."""
        now = self._clock()
        shelf = self._shelves.get(salt)
        return iter([] if shelf is None else [entry for entry in shelf.order.values() if entry.expires > now])

    def clear(self) -> None:
        """Forget all entries of all tenants: their blocks were forgotten."""
        self._shelves.clear()


@dataclass(slots=True)
class _Shelf:
    """One tenant's entries. ``order``: the one to go first is first. ``ends``: when they expire, as was once true."""

    lengths: dict[int, dict[bytes, list[Entry]]] = field(default_factory=dict)
    order: OrderedDict[_Key, Entry] = field(default_factory=OrderedDict)
    ends: list[tuple[float, _Key]] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        self.order[entry.key] = entry
        self.lengths.setdefault(entry.num_tokens, {}).setdefault(entry.digest, []).append(entry)
        heappush(self.ends, (entry.expires, entry.key))

    def prolong(self, entry: Entry, expires: float) -> None:
        if self.order.get(entry.key) is not entry:
            return
        self.order.move_to_end(entry.key)
        entry.expires = max(entry.expires, expires)

    def remove(self, key: _Key) -> None:
        entry = self.order.pop(key)
        alike = self.lengths[entry.num_tokens]
        alike[entry.digest].remove(entry)
        if not alike[entry.digest]:
            del alike[entry.digest]
        if not alike:
            del self.lengths[entry.num_tokens]

    def drop_expired(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, key = heappop(self.ends)
            entry = self.order.get(key)
            if entry is None:
                continue
            if entry.expires <= now:
                self.remove(key)
            else:  # it was read since
                heappush(self.ends, (entry.expires, key))


def digests(tokens: Sequence[int], lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """SHA-256 of the first ``length`` tokens, for each of ``lengths`` that they have, the shortest first."""
    sha256 = hashlib.sha256()
    done = 0
    for length in sorted(lengths):
        if length > len(tokens):
            return
        sha256.update(array("i", tokens[done:length]))
        done = length
        yield length, sha256.digest()


def _can_read(mark: Breakpoint, entry: Entry, look_back: int) -> bool:
    if entry.num_tokens == mark.num_tokens:  # wherever it was counted to stand: the tokens are the same
        return True
    return entry.num_tokens < mark.num_tokens and mark.position - look_back < entry.position <= mark.position
