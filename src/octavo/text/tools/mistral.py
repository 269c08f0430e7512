"""Mistral: ``[TOOL_CALLS]``, and then a list of calls; newer models write a marker, a name and the arguments::

    [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}}]
    [TOOL_CALLS]weather[ARGS]{"city": "Bern"}

Some put an id beside the arguments (``"id": ...``, ``[CALL_ID]...``); it is read over.
"""

from __future__ import annotations

import re
from dataclasses import replace

from octavo.text.tools.call_body import CallBody, CallList, CallWriter
from octavo.text.tools.json_scan import WHITESPACE, JsonScanner, Status
from octavo.text.tools.tool_format import NAME, ToolFormat

_ARGS, _CALL_ID = "[ARGS]", "[CALL_ID]"
_LONGEST_HEAD = 512
_ID = re.compile(r"[A-Za-z0-9_-]*")


class MistralBody:
    """Either form: a list begins with a bracket, a name does not."""

    def __init__(self) -> None:
        self._chosen: CallBody | None = None

    def feed(self, text: str, start: int, writer: CallWriter) -> tuple[int, Status]:
        if self._chosen is None:
            first = text[start:].lstrip(WHITESPACE)[:1]
            if not first:
                return len(text), Status.MORE
            self._chosen = CallList() if first in "[{" else _NamedCall()
        return self._chosen.feed(text, start, writer)


class _NamedCall:
    """``name[ARGS]{...}``, after the marker."""

    def __init__(self) -> None:
        self._head = ""
        self._scanner = JsonScanner()
        self._began = False

    def feed(self, text: str, start: int, writer: CallWriter) -> tuple[int, Status]:
        at = start
        while not self._began:
            if at == len(text):
                return at, Status.MORE
            if self._head.endswith(_ARGS):
                if text[at] != "{":
                    return at, Status.BAD
                writer.start(self._name())
                self._began = True
            elif self._may_go_on(self._head + text[at]):
                self._head += text[at]
                at += 1
            else:
                return at, Status.BAD
        end, status = self._scanner.feed(text, at)
        if end > at:
            writer.arguments(text[at:end])
        if status is Status.DONE:
            writer.end()
        return end, status

    def _name(self) -> str:
        return self._head.removesuffix(_ARGS).partition(_CALL_ID)[0].strip(WHITESPACE)

    def _may_go_on(self, head: str) -> bool:
        """Whether ``head`` can become a name, perhaps an id, and the marker before the arguments."""
        name = NAME.match(head := head.lstrip(WHITESPACE))
        if name is None or len(head) > _LONGEST_HEAD:
            return not head
        rest = head[name.end() :]
        if rest.startswith(_CALL_ID):
            rest = rest[len(_CALL_ID) :]
            rest = rest[len(_ID.match(rest)[0]) :]  # type: ignore[index]  # it matches the empty text
            return _ARGS.startswith(rest)
        return _ARGS.startswith(rest) or _CALL_ID.startswith(rest)


MISTRAL = ToolFormat(
    name="mistral",
    begin="[TOOL_CALLS]",
    opening="[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    joiner=", ",
    closing="]",
    body=MistralBody,
    tokens=("[TOOL_CALLS]",),
)

MISTRAL_ARGS = replace(
    MISTRAL,
    opening="",
    before_name="",
    before_arguments=_ARGS,
    after_arguments="",
    joiner=None,
    closing="",
    quoted_name=False,
    tokens=("[TOOL_CALLS]", _ARGS),
)
