"""Call: one HTTP request on its way through the server: who asks, under which id, and what came of it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from octavo.server.usage import Entry


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``tenant`` shares limits, stored responses and, under ``cache_salt``, cached blocks."""

    tenant: str = "default"
    cache_salt: bytes = b""
    is_admin: bool = False


@dataclass(slots=True)
class Call:
    """Made for each HTTP request before anything else is looked at.

    Attributes:
        request_id: ours; clients see it in a header and in errors, logs carry it.
        endpoint: the path.
        caller: ``None`` until the key was checked.
        entries: what it used: one for each prompt that was admitted.
    """

    endpoint: str
    request_id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex}")
    started: float = field(default_factory=time.monotonic)
    caller: Caller | None = None
    entries: list[Entry] = field(default_factory=list)


def call_of(connection: HTTPConnection) -> Call:
    """The call that the outermost middleware made for this request."""
    call: Call = connection.scope["octavo.call"]
    return call
