"""Prompt caching as OpenAI's requests ask for it: fields, breakpoints, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from octavo.server.openai.fields import Short
from octavo.server.prompt_cache.caching import DAY, FIVE_MINUTES, HALF_A_DAY, HALF_AN_HOUR, HOUR, Caching, Mark
from octavo.server.validation import Body
from octavo.text.messages import leading_system
from octavo.text.places import Place

SECONDS = {"30m": HALF_AN_HOUR, "12h": HALF_A_DAY, "5m": FIVE_MINUTES, "1h": HOUR}
MAX_WRITTEN = {"implicit": 3, "explicit": 4}
"""How many explicit breakpoints of a request are written, the latest; an implicit one is written beside them."""
MAX_READ = 80
"""At how many breakpoints, the latest, a request is looked up if none is implicit."""


class CacheOptions(Body):
    """``mode``: whether the end of the prompt is a breakpoint by itself. ``ttl``: of all that say nothing else."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


class CachingBody(Body):
    """The fields that all of OpenAI's endpoints have for it."""

    prompt_cache_key: Short | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None

    @property
    def cache_mode(self) -> Literal["implicit", "explicit"]:
        options = self.prompt_cache_options
        return (None if options is None else options.mode) or "implicit"

    @property
    def cache_ttl(self) -> Literal["30m", "12h"]:
        options = self.prompt_cache_options
        return (None if options is None else options.ttl) or "30m"

    def caching(self, messages: Sequence[Mapping[str, Any]] = (), tools: Sequence[Mapping[str, Any]] = ()) -> Caching:
        """What is asked of the cache for a prompt of ``messages`` and ``tools``, which still have their markers."""
        marks = list(_marks(messages, tools, SECONDS[self.cache_ttl]))
        written = MAX_WRITTEN[self.cache_mode]
        if self.cache_mode == "explicit":
            reads = bool(marks)
            return Caching(marks=marks[-MAX_READ:], max_written=written, reads=reads, key=self.prompt_cache_key)
        options, for_a_day = self.prompt_cache_options, self.prompt_cache_retention == "24h"
        return Caching(
            marks=marks[-written:],
            at_end=DAY if for_a_day else SECONDS[self.cache_ttl],
            asks_for_end=for_a_day or (options is not None and options.ttl is not None),
            max_written=written,
            key=self.prompt_cache_key,
        )


def _marks(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], default: int) -> Iterator[Mark]:
    """Breakpoints in the order of the prompt: tools, then messages, each of a message's texts before its end.

    ``default``: seconds of those of OpenAI's that have no ``ttl``. Anthropic's have five minutes then, as everywhere.
    """
    position = 0
    for index, tool in enumerate(tools):
        position += 1
        yield from _mark(tool, Place("tool", index), position, default)
    blocks, leading = 0, leading_system(messages)
    for index, message in enumerate(messages):
        is_leading = index < leading
        content = message.get("content", "")
        parts = content if isinstance(content, list) else [{}]
        for number, part in enumerate(parts):
            position += 1
            place = Place("system", blocks + number) if is_leading else Place("message", index, part=number)
            yield from _mark(part, place, position, default)
        blocks += len(parts)
        position += len(message.get("tool_calls") or ())
        if not is_leading:
            yield from _mark(message, Place("message", index), position, default)
        elif parts:
            yield from _mark(message, Place("system", blocks - 1), position, default)


def _mark(marked: Mapping[str, Any], place: Place, position: int, default: int) -> Iterator[Mark]:
    """The one breakpoint of what carries markers, which may be both vendors'; the longer time counts then."""
    ours, theirs = marked.get("prompt_cache_breakpoint"), marked.get("cache_control")
    ttls = [SECONDS[ours["ttl"]] if "ttl" in ours else default] if ours else []
    if theirs:
        ttls.append(SECONDS[theirs.get("ttl", "5m")])
    if ttls:
        yield Mark(place, position, max(ttls))
