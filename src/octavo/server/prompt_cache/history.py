"""History: the last prompts and what was answered to them, so that a later miss can be explained by comparing.

While requests run nothing is done for it but keeping references: tokens and messages that are there anyway.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from octavo.engine.sampling_params import SamplingParams
from octavo.server.requests import ChatRequest

MAX_TENANTS = 1000
"""With more of them, those are forgotten that sent nothing for longest."""
_RECORD_BYTES = 2000
"""About what a record takes beside its tokens and texts."""
_TOKEN_BYTES = 4
_MAX_FLUSHES = 100
_SAMPLING = SamplingParams()


@dataclass(slots=True, eq=False)
class Record:
    """One prompt and its answers.

    Attributes:
        request_id: as the server calls it: ``req_`` and hex digits. Clients know it by these digits too:
            ``msg_...``, ``chatcmpl-...``, ``cmpl-...``, ``resp_...``; see :func:`digits`.
        salt: of the cache it was computed under.
        request: the conversation; ``None`` for a plain prompt. How it was to be answered is left out once it is in the
            history: that may be large, and explains nothing.
        prompt: the prompt's tokens.
        outputs: the tokens of each answer so far.
        began: in seconds of the clock that the history was made with.
        reads: whether it may use what was computed before.
        by_entries: whether what is counted as read is what entries cover, not all that was reused.
        num_kept: tokens up to its last breakpoint that is written; 0: it has none.
        kept_for: seconds for which that is kept.
        num_short: tokens up to its last breakpoint that is too short to count; 0: it has none.
        num_cached: tokens of the prompt that were reused; ``None`` before it is known.
        num_read: those that its API's rules count as read; ``None`` before it is known.
        ended: when it ended; ``None`` while it is being computed.
        name: under which the history has it; empty: it has not, or not any more.
        request_bytes: what ``request`` takes.
        counted: bytes that the history has counted for it.
    """

    request_id: str
    tenant: str
    salt: bytes
    endpoint: str
    model: str
    request: ChatRequest | None
    prompt: array[int]
    began: float
    outputs: list[array[int]] = field(default_factory=list)
    reads: bool = True
    by_entries: bool = False
    num_kept: int = 0
    kept_for: int = 0
    num_short: int = 0
    num_cached: int | None = None
    num_read: int | None = None
    ended: float | None = None
    name: str = ""
    request_bytes: int = 0
    counted: int = 0

    @property
    def num_bytes(self) -> int:
        """About what it takes."""
        return _RECORD_BYTES + self.request_bytes + (len(self.prompt) + sum(map(len, self.outputs))) * _TOKEN_BYTES


class History:
    """The records of the last requests of every tenant. Lives on one event loop, so it needs no lock.

    Args:
        max_bytes: of all records of one tenant; the oldest are forgotten first.
        max_records: of one tenant.

    Attributes:
        flushes: when the cache was last flushed, the newest last.
    """

    def __init__(self, *, max_bytes: int, max_records: int, max_tenants: int = MAX_TENANTS) -> None:
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._max_tenants = max_tenants
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()
        self._numbers = count(1)
        self.flushes: deque[float] = deque(maxlen=_MAX_FLUSHES)

    def add(self, record: Record) -> None:
        """Keep ``record``, which goes on being filled; let go of the oldest where there is no room."""
        if record.request is not None:
            record.request = replace(record.request, sampling=_SAMPLING, output=None)
        shelf = self._shelves.setdefault(record.tenant, _Shelf())
        self._shelves.move_to_end(record.tenant)
        record.name = digits(record.request_id)
        if record.name in shelf.records:  # of a request with several prompts, which is known by its first
            record.name = f"{record.name}/{next(self._numbers)}"
        shelf.records[record.name] = record
        self._count(record)
        while len(self._shelves) > self._max_tenants:
            _, longest_silent = self._shelves.popitem(last=False)
            while longest_silent.records:
                longest_silent.drop_oldest()

    def end(self, record: Record, now: float) -> None:
        """``record`` is complete. One that never had a first output leaves nothing: it was refused, or it is not known
        how much of its prompt was computed.
        """
        record.ended = now
        if not record.name:
            return
        if record.num_cached is None:
            shelf = self._shelves[record.tenant]
            shelf.drop(record.name)
            self._close(record.tenant, shelf)
        else:
            self._count(record)

    def find(self, tenant: str | None, request_id: str) -> Record | None:
        """The record that a client calls ``request_id``, be it by our name or its dialect's. ``tenant=None``: of
        whomsoever.
        """
        wanted = digits(request_id)
        shelves = list(self._shelves.values()) if tenant is None else [self._shelves.get(tenant, _Shelf())]
        return next((shelf.records[wanted] for shelf in shelves if wanted in shelf.records), None)

    def of(self, tenant: str) -> Iterator[Record]:
        """A tenant's records, the newest first."""
        return reversed(self._shelves.get(tenant, _Shelf()).records.values())

    def before(self, record: Record) -> list[Record]:
        """Those of its tenant that came before it, the newest first; all, if it is not in the history."""
        found = list(self.of(record.tenant))
        return found[found.index(record) + 1 :] if record.name else found

    def salts(self) -> dict[str, bytes]:
        """Under which salt each tenant that has records is cached."""
        return {tenant: next(reversed(shelf.records.values())).salt for tenant, shelf in self._shelves.items()}

    def flushed(self, now: float) -> None:
        """All that no request held was forgotten."""
        self.flushes.append(now)

    def _count(self, record: Record) -> None:
        shelf = self._shelves[record.tenant]
        shelf.num_bytes += record.num_bytes - record.counted
        record.counted = record.num_bytes
        while shelf.records and (len(shelf.records) > self._max_records or shelf.num_bytes > self._max_bytes):
            shelf.drop_oldest()
        self._close(record.tenant, shelf)

    def _close(self, tenant: str, shelf: _Shelf) -> None:
        if not shelf.records:
            del self._shelves[tenant]


@dataclass(slots=True)
class _Shelf:
    """One tenant's records, the oldest first."""

    records: OrderedDict[str, Record] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def drop(self, name: str) -> None:
        """It may still be under way, and then is not counted again."""
        record = self.records.pop(name)
        self.num_bytes -= record.counted
        record.counted, record.name = 0, ""

    def drop_oldest(self) -> None:
        self.drop(next(iter(self.records)))


def bytes_of(request: ChatRequest) -> int:
    """What the conversation of ``request`` takes: its texts, and all that they are wrapped in."""
    total, left = 0, [request.messages, request.tools, dict(request.template_kwargs)]
    while left:
        value: object = left.pop()
        total += sys.getsizeof(value)
        if isinstance(value, dict):
            left += value
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
    return total


def digits(request_id: str) -> str:
    """What all names of one request have in common: the digits behind their first ``_`` or ``-``."""
    return request_id.replace("-", "_", 1).partition("_")[2]
