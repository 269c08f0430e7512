"""Stop strings: found across any boundary, and never leaked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from octavo.errors import InvalidRequestError


class StopResult(NamedTuple):
    """What may be shown now, and the stop string that ended the text, if one did."""

    text: str
    stop: str | None


class StopChecker:
    """Looks for stop strings in a text that arrives in pieces. One for each sequence; it keeps state.

    The stop string that is complete first ends the text: pieces of any size give the same result, so a
    streamed text equals an unstreamed one. Of two complete at the same character the longer wins, so that no
    part of a stop string stays; of equal ones the first in the list. Text that may turn out to be the
    beginning of a stop string is held back until that is decided or the text ends.

    Each stop string is followed with the automaton of Knuth, Morris and Pratt ("Fast pattern matching in
    strings", 1977), so a character costs amortised constant time per stop string, whatever the strings.
    """

    def __init__(self, stop: Sequence[str] = (), include_stop_str_in_output: bool = False) -> None:
        """``include_stop_str_in_output``: the text ends after the stop string, not before it.

        Raises:
            InvalidRequestError: a stop string is empty or not text.
        """
        if isinstance(stop, str) or not all(isinstance(string, str) and string for string in stop):
            raise InvalidRequestError(f"stop must be a list of non-empty strings; got {stop!r}", param="stop")
        # Longest first: of those that end at the same character it is the one that starts first.
        self._stops = sorted(stop, key=len, reverse=True)
        self._fallbacks = [_prefix_function(string) for string in self._stops]
        self._matched = [0] * len(self._stops)
        self._include = include_stop_str_in_output
        self._held = ""
        self._done: str | None = None

    def feed(self, new_text: str, final: bool = False, *, stop_allowed: bool = True) -> StopResult:
        """Take the next piece of text; ``final`` says that none follows, so nothing is held back.

        ``stop_allowed=False`` ignores stop strings that become complete within this piece (``min_tokens`` is
        not yet reached); one that began in it may still be completed later. After a stop string, everything
        is empty.
        """
        if self._done is not None:
            return StopResult("", self._done)
        if not self._stops:
            return StopResult(new_text, None)
        text = self._held + new_text
        found = self._search(new_text, stop_allowed)
        if found is not None:
            end, self._done = found
            cut = len(self._held) + end
            self._held = ""
            return StopResult(text[: cut if self._include else cut - len(self._done)], self._done)
        keep = 0 if final or self._include else max(self._matched)
        self._held = text[len(text) - keep :]
        return StopResult(text[: len(text) - keep], None)

    def _search(self, new_text: str, stop_allowed: bool) -> tuple[int, str] | None:
        """Advance every automaton over ``new_text``: where the first match in it ends, and of what."""
        first: tuple[int, str] | None = None
        for index, stop in enumerate(self._stops):
            matched = self._matched[index]
            if not matched and stop[0] not in new_text:
                continue
            fallback, size = self._fallbacks[index], len(stop)
            for position, character in enumerate(new_text if first is None else new_text[: first[0] - 1]):
                while matched and stop[matched] != character:
                    matched = fallback[matched - 1]
                matched += stop[matched] == character
                if matched == size:
                    if stop_allowed:
                        first = (position + 1, stop)
                        break
                    matched = fallback[matched - 1]
            self._matched[index] = matched
        return first


@lru_cache(maxsize=64)  # the answers to one request have the same stop strings
def _prefix_function(string: str) -> tuple[int, ...]:
    """For each prefix of ``string``, the length of its longest proper prefix that is also its suffix."""
    lengths = [0] * len(string)
    matched = 0
    for index in range(1, len(string)):
        while matched and string[index] != string[matched]:
            matched = lengths[matched - 1]
        matched += string[index] == string[matched]
        lengths[index] = matched
    return tuple(lengths)
