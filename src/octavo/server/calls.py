"""Call: one HTTP request on its way through the server: who asks, under which id, and what came of it."""

from __future__ import annotations

import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from octavo.server.answers import Answer
from octavo.server.usage import Entry, Usage


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``tenant`` shares limits, stored responses and, under ``cache_salt``, cached blocks."""

    tenant: str = "default"
    cache_salt: bytes = b""
    is_admin: bool = False


@dataclass(slots=True)
class Call:
    """Made for each HTTP request before anything else is looked at, and closed when it has ended, however it ended.

    Attributes:
        request_id: ours; clients see it in a header and in errors, logs carry it.
        endpoint: the path.
        caller: ``None`` until the key was checked.
        body_size: bytes of its body; 0 until that was read.
        cache_key: under what the client wants it counted; see ``prompt_cache_key`` of OpenAI's APIs.
        entries: what it used: one for each prompt that was admitted.
        answers: what was begun for it, and ends with it.
        status: of the response; ``None`` before there is one.
        error: the name of what went wrong, if something did.
        ended: when, in seconds of ``time.monotonic`` as ``started``.
    """

    endpoint: str
    method: str = "GET"
    request_id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex}")
    started: float = field(default_factory=time.monotonic)
    caller: Caller | None = None
    body_size: int = 0
    cache_key: str | None = None
    entries: list[Entry] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    status: int | None = None
    error: str | None = None
    ended: float | None = None

    @property
    def duration(self) -> float:
        """Seconds, so far or in all."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def has_failed(self) -> bool:
        """Whether it was the server that could not, be it in the midst of a stream."""
        return self.status is not None and (self.status >= 500 or (self.status == 200 and self.error is not None))

    @property
    def usage(self) -> Usage:
        """Of all its prompts together."""
        total = Usage()
        for entry in self.entries:
            total.add(entry.usage)
        return total

    def enter(self) -> Entry:
        """An entry in the ledger for one more prompt."""
        tenant = Caller().tenant if self.caller is None else self.caller.tenant
        entry = Entry(self.request_id, self.endpoint, tenant, self.started)
        self.entries.append(entry)
        return entry

    async def close(self) -> None:
        """End every answer that has not ended: whoever forgot one, or could not come to it, has not leaked it."""
        async with AsyncExitStack() as stack:
            for answer in self.answers:
                stack.push_async_callback(answer.close)


def call_of(connection: HTTPConnection) -> Call:
    """The call that the outermost middleware made for this request."""
    call: Call = connection.scope["octavo.call"]
    return call
