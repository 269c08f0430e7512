"""CallParser: text and tool calls told apart as they arrive."""

from __future__ import annotations

from octavo.text.reply_parts import ReplyPart, Text
from octavo.text.tools.call_body import CallBody, CallWriter
from octavo.text.tools.json_scan import WHITESPACE, Status
from octavo.text.tools.tool_format import ToolFormat

_BETWEEN_CALLS = WHITESPACE + ",[]"


class CallParser:
    """Reads an answer in pieces of any size; keeps state.

    White space around a call belongs to the call. Whatever cannot become a call is text, markers and all::

        Let me see.\\n<tool_call>\\n{"name": "f", "arguments": {"a": 1}}\\n</tool_call>
        |-- text --||-- raw, until arguments begin --------||--- call ---------------|
    """

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._marker = tool_format.begin
        self._writer = CallWriter()
        self._body: CallBody | None = None
        self._held = ""  # text that may belong to a marker, or stand before one
        self._raw = ""  # within a call: what is text again if this is no call
        self._nothing_said = True  # where a call needs no marker, it must come first
        self._after_call = False
        self._stray_end = False  # a call broke off, so its end marker stands in the text

    def feed(self, text: str) -> list[ReplyPart]:
        """What these characters make certain."""
        if not self._held and self._is_plain(text):
            return [Text(text)]
        parts: list[ReplyPart] = []
        held, self._held = self._held, ""
        self._read(held + text, parts)
        return parts

    def finish(self) -> list[ReplyPart]:
        """What was held back; a call that is still open ends."""
        parts: list[ReplyPart] = []
        while self._body is not None:
            self._end_open_call(parts)
            raw, self._body, self._raw = self._raw, None, ""
            if self._after_call and self._format.end.startswith(raw.strip(_BETWEEN_CALLS)):
                break  # only the end marker is missing
            self._read(self._reread(raw, parts), parts)
        held, self._held = self._held, ""
        if held.strip(WHITESPACE) or (held and not self._after_call):
            parts.append(Text(held))
        return parts

    def _read(self, rest: str, parts: list[ReplyPart]) -> None:
        while rest:
            rest = self._feed_text(rest, parts) if self._body is None else self._feed_body(rest, parts)

    def _is_plain(self, text: str) -> bool:
        """Whether ``text`` is text and nothing else, as nearly all is (markers begin with the same character)."""
        if self._body is not None or self._nothing_said or self._after_call or not text:
            return False
        return self._marker[0] not in text and text[-1] not in WHITESPACE

    def _feed_text(self, text: str, parts: list[ReplyPart]) -> str:
        """Say what is text; what follows a marker is left for the body."""
        if self._nothing_said and self._format.bare and text.lstrip(WHITESPACE)[:1] == "{":
            return self._begin_body(text, text.index("{"), 0, parts)
        marker, at = self._first_marker(text)
        if marker == self._marker:
            return self._begin_body(text, at, len(marker), parts)
        if marker:
            self._stray_end = False
            self._say(text[:at], parts)
            return text[at + len(marker) :]
        keep = max(_overlap(text, self._marker), _overlap(text, self._format.end) if self._stray_end else 0)
        said = text[: len(text) - keep].rstrip(WHITESPACE)
        self._held = text[len(said) :]
        self._say(said, parts)
        return ""

    def _first_marker(self, text: str) -> tuple[str, int]:
        wanted = (self._marker, self._format.end) if self._stray_end else (self._marker,)
        found = [(text.find(marker), marker) for marker in wanted]
        at, marker = min((place for place in found if place[0] >= 0), default=(-1, ""))
        return marker, at

    def _begin_body(self, text: str, at: int, size: int, parts: list[ReplyPart]) -> str:
        said = text[:at].rstrip(WHITESPACE)
        self._say(said, parts)
        self._raw = text[len(said) : at + size]
        self._body = self._format.body()
        self._after_call = False
        return text[at + size :]

    def _feed_body(self, text: str, parts: list[ReplyPart]) -> str:
        assert self._body is not None
        at, status = self._body.feed(text, 0, self._writer)
        if self._writer.parts or self._writer.settled:
            parts += self._writer.take()
            self._raw, self._nothing_said, self._after_call = "", False, True
        else:
            self._raw += text[:at]
        if status is Status.MORE:
            return text[at:]
        raw, self._body, self._raw = self._raw, None, ""
        if status is Status.BAD:
            self._stray_end = bool(self._format.end) and self._after_call
            self._end_open_call(parts)
            return self._reread(raw, parts) + text[at:]
        return text[at:]

    def _end_open_call(self, parts: list[ReplyPart]) -> None:
        if self._writer.is_open:
            self._writer.end()
            parts += self._writer.take()

    def _reread(self, raw: str, parts: list[ReplyPart]) -> str:
        """``raw`` was no call: say its marker, and return what is read again as text."""
        self._nothing_said = False
        said = len(raw) - len(raw.lstrip(WHITESPACE)) + len(self._marker)
        if raw[:said].endswith(self._marker):
            self._say(raw[:said], parts)
            return raw[said:]
        return raw

    def _say(self, text: str, parts: list[ReplyPart]) -> None:
        if text:
            parts.append(Text(text))
            self._nothing_said = self._after_call = False


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of ``text`` may begin ``marker``."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0
