"""Caching: what a request asks of the prompt cache, whichever dialect it came in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from octavo.text.places import Place

FIVE_MINUTES, HALF_AN_HOUR, HOUR, HALF_A_DAY, DAY = 300, 1800, 3600, 43200, 86400
"""Times to live that the APIs know, in seconds."""


_BEYOND = 2**31
"""Position of the end of the whole prompt, which lies beyond that of every mark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A breakpoint: the prompt up to the end of ``place`` is to be kept for ``ttl`` seconds.

    ``position``: how many places a breakpoint can stand on there are up to this one, itself included, in the order of
    the prompt. Look-back is counted in these.
    """

    place: Place
    position: int
    ttl: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caching:
    """What is wanted.

    Attributes:
        contract: whose rules say what is reported.
        marks: breakpoints, in the order of the prompt.
        at_end: seconds for which the whole prompt counts as kept; ``None``: it does not.
        asks_for_end: whether somebody asked for that, so that it is truly held on to; what the API says of every
            request would otherwise push out what few ask for.
        look_back: how many positions before a mark, its own included, what it reads may end; 0: nowhere but where the
            mark stands, to the token.
        max_written: how many of the marks, the last ones, are written; all of them are read at.
        reads: ``False``: nothing that was computed before is used.
        key: under what the client wants its requests counted together.
    """

    contract: Literal["anthropic", "openai"] = "openai"
    marks: Sequence[Mark] = ()
    at_end: int | None = None
    asks_for_end: bool = False
    look_back: int = 0
    max_written: int = 4
    reads: bool = True
    key: str | None = None

    def breakpoints(self, ends: Sequence[End], num_tokens: int) -> list[Breakpoint]:
        """Where the marks stand, in a prompt of ``num_tokens`` tokens; ``ends``: of their places."""
        first_written = len(self.marks) - self.max_written
        found: list[Breakpoint] = []
        for index, (mark, end) in enumerate(zip(self.marks, ends, strict=True)):
            at = Breakpoint(end.num_tokens, mark.position, mark.ttl, is_written=index >= first_written, name=end.name)
            found += [replace(at, num_tokens=num_tokens) for num_tokens in sorted({*end.shorter, end.num_tokens})]
        if self.at_end is not None:
            found.append(Breakpoint(num_tokens, _BEYOND, self.at_end, is_retained=self.asks_for_end))
        return found


@dataclass(frozen=True, slots=True)
class End:
    """Where a place ends in a prompt, as long as nothing follows but what usually does.

    ``shorter``: ends that are right for longer: if more texts follow in the message, or once another turn has begun and
    the template drops reasoning from this one. Entries are made there too, so that they are found then; nobody is told
    of them apart. ``name``: of all that the prompt consists of up to there; see
    :mod:`octavo.server.prompt_cache.contents`.
    """

    num_tokens: int
    shorter: Collection[int]
    name: bytes


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A mark whose place in the prompt is known: the first ``num_tokens`` tokens are to be kept.

    ``is_written``: whether it makes an entry; one that does not is only read at. ``is_retained``: whether the engine
    holds on to the tokens for that. ``name``: as :class:`End` has it; an empty one: the tokens alone say what they are.
    """

    num_tokens: int
    position: int
    ttl: int
    is_written: bool = True
    is_retained: bool = True
    name: bytes = b""


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a prompt a named cache covers: its first ``num_tokens`` tokens, for ``seconds`` from now."""

    num_tokens: int
    seconds: float
