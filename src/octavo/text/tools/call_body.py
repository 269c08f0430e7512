"""What stands behind the marker that begins a call, read as it arrives."""

from __future__ import annotations

import json
from typing import Protocol

from octavo.text.reply_parts import ReplyPart, ToolArguments, ToolCallEnd, ToolCallStart
from octavo.text.tools.json_scan import WHITESPACE, JsonScanner, Status

_ARGUMENTS = ("arguments", "parameters")


class CallWriter:
    """Collects the calls of one reply as parts.

    Attributes:
        settled: what was read so far belongs to a call, whatever comes.
    """

    def __init__(self) -> None:
        self.parts: list[ReplyPart] = []
        self.settled = False
        self.num_calls = 0
        self.is_open = False

    def start(self, name: str) -> None:
        self.parts.append(ToolCallStart(self.num_calls, name))
        self.num_calls += 1
        self.is_open = True

    def arguments(self, text: str) -> None:
        self.parts.append(ToolArguments(self.num_calls - 1, text))

    def end(self) -> None:
        self.parts.append(ToolCallEnd(self.num_calls - 1))
        self.is_open = False

    def take(self) -> list[ReplyPart]:
        parts, self.parts, self.settled = self.parts, [], False
        return parts


class CallBody(Protocol):
    """Reads what follows one begin marker. One for each; it keeps state."""

    def feed(self, text: str, start: int, writer: CallWriter) -> tuple[int, Status]:
        """Read ``text`` from ``start`` until something was written or settled, the text ends, or the calls do.

        ``DONE``: after their last character. ``BAD``: before the first character that no call has there.
        """


class CallObject:
    """One ``{"name": ..., "arguments": {...}}``; ``parameters`` is taken for ``arguments``.

    Arguments are written as soon as both the name is known and they begin. Other keys are read over.
    """

    def __init__(self, *, name_first: bool = False) -> None:
        """``name_first``: what does not begin with the name, and goes on with the arguments, is no call."""
        self._name_first = name_first
        self._object = JsonScanner()
        self._arguments: JsonScanner | None = None
        self._early = ""  # arguments that came before the name
        self._has_arguments = self._arguments_done = False
        self._name: str | None = None
        self._string = ""  # a string of the object itself, as it comes
        self._key = ""

    def feed(self, text: str, start: int, writer: CallWriter) -> tuple[int, Status]:
        at = start
        while at < len(text):
            if self._arguments is not None:
                return self._feed_arguments(text, at, writer)
            begins_value = self._key and not self._string and text[at] not in WHITESPACE + ":"
            if begins_value and self._key in _ARGUMENTS and text[at] == "{" and not self._has_arguments:
                self._begin_arguments(writer)
                continue
            _, status = self._object.feed(text[at])
            if status is Status.BAD or not self._took(text[at], writer):
                return at, Status.BAD
            at += 1
            if status is Status.DONE:
                made_call = self._name is not None and self._has_arguments
                return (at, Status.DONE) if made_call else (at - 1, Status.BAD)
            if writer.parts:
                return at, Status.MORE
        return at, Status.MORE

    def _begin_arguments(self, writer: CallWriter) -> None:
        self._object.feed("{}")  # in its place, so that the object goes on behind it
        self._arguments, self._has_arguments, self._key = JsonScanner(), True, ""
        if self._name is not None:
            writer.start(self._name)

    def _feed_arguments(self, text: str, at: int, writer: CallWriter) -> tuple[int, Status]:
        assert self._arguments is not None
        end, status = self._arguments.feed(text, at)
        if self._name is None:
            self._early += text[at:end]
        elif end > at:
            writer.arguments(text[at:end])
        if status is Status.DONE:
            self._arguments, self._arguments_done = None, True
            if self._name is not None:
                writer.end()
            return end, Status.MORE
        return end, status

    def _took(self, character: str, writer: CallWriter) -> bool:
        """Follow the keys of the object and the value of its name: whether it can still be a call."""
        if self._object.depth == 1 and (self._object.in_string or self._string):
            self._string += character
            return self._object.in_string or self._string_ended(writer)
        if self._object.depth == 1 and character == ",":
            self._key = ""
        if self._name_first and self._name is None:
            return character in WHITESPACE + "{:"
        # What begins the arguments is not seen here, so anything else is no object.
        return not self._name_first or self._key not in _ARGUMENTS or character in WHITESPACE + ":"

    def _string_ended(self, writer: CallWriter) -> bool:
        value, self._string = json.loads(self._string), ""
        if self._object.after_key:
            self._key = value
            expected = ("name",) if self._name is None else _ARGUMENTS
            return not self._name_first or self._has_arguments or value in expected
        if self._key == "name" and self._name is None:
            if not value or any("\ud800" <= character <= "\udfff" for character in value):
                return False
            self._name = value
            if self._has_arguments:
                writer.start(value)
                writer.arguments(self._early)
                writer.end()
        self._key = ""
        return True


class CallList:
    """One call object, or an array of them, and then perhaps ``end``."""

    def __init__(self, end: str = "", *, name_first: bool = False) -> None:
        self._end = end
        self._name_first = name_first
        self._call: CallObject | None = None
        self._is_array = False
        self._wants_call = True
        self._ending = ""  # of the end marker, what has come of it
        self._over = False

    def feed(self, text: str, start: int, writer: CallWriter) -> tuple[int, Status]:
        at = start
        while at < len(text):
            if self._call is not None:
                at, status = self._call.feed(text, at, writer)
                if status is Status.DONE:
                    self._call_ended(writer)
                    return at, self._status
                if status is Status.BAD or writer.parts:
                    return at, status
            elif self._over:
                return self._feed_end(text, at)
            elif text[at] in WHITESPACE:
                at += 1
            elif text[at] == "{" and self._wants_call:
                self._call = CallObject(name_first=self._name_first)
            elif not self._punctuation(text[at]):
                return at, Status.BAD
            else:
                at += 1
                writer.settled = text[at - 1] != "["
                if writer.settled:
                    return at, self._status
        return at, Status.MORE

    def _call_ended(self, writer: CallWriter) -> None:
        self._call, self._wants_call, self._over = None, False, not self._is_array
        writer.settled = True

    @property
    def _status(self) -> Status:
        return Status.DONE if self._over and not self._end else Status.MORE

    def _punctuation(self, character: str) -> bool:
        """``[`` before the first call, ``,`` between two, ``]`` after the last."""
        if character == "[" and self._wants_call and not self._is_array and not self._name_first:
            self._is_array = True
            return True
        if character == "," and self._is_array and not self._wants_call:
            self._wants_call = True
            return True
        if character == "]" and self._is_array and not self._wants_call:
            self._over = True
            return True
        return False

    def _feed_end(self, text: str, start: int) -> tuple[int, Status]:
        """White space and the end marker; the calls are over, whether it comes or not."""
        at = start
        while at < len(text):
            if not self._ending and text[at] in WHITESPACE:
                at += 1
            elif text[at] == self._end[len(self._ending)]:
                self._ending += text[at]
                at += 1
                if self._ending == self._end:
                    return at, Status.DONE
            else:
                return at, Status.BAD
        return at, Status.MORE
