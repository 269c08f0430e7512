"""JSON read as it arrives, character by character: where a value ends, and where it stops being JSON."""

from __future__ import annotations

import re
from enum import Enum, auto

WHITESPACE = " \t\n\r"

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # what stands in a string as it is
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = ("true", "false", "null")
_WORD_CHARACTERS = frozenset("+-.0123456789eE" + "".join(_WORDS))


class Status(Enum):
    """How a value stands after some of its text."""

    MORE = auto()
    DONE = auto()
    BAD = auto()


class _Expect(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()  # or the end of the array
    KEY = auto()
    FIRST_KEY = auto()  # or the end of the object
    COLON = auto()
    NEXT = auto()  # a comma, or the end of what is open


class JsonScanner:
    """Reads one JSON object or array (RFC 8259). One for each value; it keeps state.

    After :meth:`feed` said ``DONE`` or ``BAD`` it reads nothing more.
    """

    __slots__ = ("_escape", "_expect", "_in_string", "_open", "_word")

    def __init__(self) -> None:
        self._open: list[str] = []
        self._expect = _Expect.VALUE
        self._in_string = False
        self._escape = ""  # of an escape within a string, what has come of it
        self._word = ""  # of a number, true, false or null, what has come of it

    def feed(self, text: str, start: int = 0) -> tuple[int, Status]:
        """Read ``text`` from ``start``: where reading ended, and why.

        ``DONE``: after the value's last character. ``BAD``: before the character that JSON does not have there.
        """
        at = start
        while at < len(text):
            if self._in_string:
                if not self._escape and (plain := _PLAIN.match(text, at)):
                    at = plain.end()
                    continue
                good = self._string(text[at])
            elif self._word and text[at] in _WORD_CHARACTERS:
                self._word += text[at]
                good = _begins_word(self._word)
            else:
                good = self._end_word() and self._between(text[at])
            if not good:
                return at, Status.BAD
            at += 1
            if not self._open and self._expect is _Expect.NEXT:
                return at, Status.DONE
        return at, Status.MORE

    @property
    def depth(self) -> int:
        """How many objects and arrays are open."""
        return len(self._open)

    @property
    def in_string(self) -> bool:
        """Whether the next character stands in a string, or ends it."""
        return self._in_string

    @property
    def after_key(self) -> bool:
        """Whether a key has just ended, so that a colon must follow."""
        return self._expect is _Expect.COLON

    def _string(self, character: str) -> bool:
        if self._escape:
            self._escape += character
            if self._escape[1] == "u":
                hex_digits = self._escape[2:]
                if hex_digits and hex_digits[-1] not in "0123456789abcdefABCDEF":
                    return False
                if len(hex_digits) == 4:
                    self._escape = ""
                return True
            self._escape = ""
            return character in '"\\/bfnrt'
        if character == "\\":
            self._escape = "\\"
        elif character == '"':
            self._in_string = False
            self._expect = _Expect.COLON if self._expect in (_Expect.KEY, _Expect.FIRST_KEY) else _Expect.NEXT
        else:
            return False  # a control character
        return True

    def _end_word(self) -> bool:
        """A number or a name has no end of its own: it is over when something else comes."""
        word, self._word = self._word, ""
        if not word:
            return True
        self._expect = _Expect.NEXT
        return word in _WORDS or _NUMBER.fullmatch(word) is not None

    def _between(self, character: str) -> bool:
        """A character outside strings, numbers and names."""
        if character in WHITESPACE:
            return bool(self._open)
        expect = self._expect
        if character in "}]":
            return self._close(character)
        if expect is _Expect.COLON:
            self._expect = _Expect.VALUE
            return character == ":"
        if expect is _Expect.NEXT:
            self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
            return character == ","
        if character == '"':
            self._in_string = True
            return bool(self._open)
        if expect in (_Expect.KEY, _Expect.FIRST_KEY):
            return False
        if character in "{[":
            self._open.append("}" if character == "{" else "]")
            self._expect = _Expect.FIRST_KEY if character == "{" else _Expect.FIRST_VALUE
            return True
        self._word = character
        return bool(self._open) and _begins_word(character)

    def _close(self, character: str) -> bool:
        allowed = (_Expect.NEXT, _Expect.FIRST_KEY if character == "}" else _Expect.FIRST_VALUE)
        if not self._open or self._open[-1] != character or self._expect not in allowed:
            return False
        self._open.pop()
        self._expect = _Expect.NEXT
        return True


def _begins_word(word: str) -> bool:
    if word[0] in "-0123456789":
        return any(_NUMBER.fullmatch(word + digit) for digit in ("", "0"))  # as it is, or with a digit more
    return any(name.startswith(word) for name in _WORDS)
