"""ToolFormat: how one family of models writes a call. The parser, the grammar and rendered histories follow it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from octavo.text.tools.call_body import CallBody

NAME = re.compile(r"[^\s\[\]{}\"<>\\\ud800-\udfff]+")
"""A function's name: nothing in it that a format writes around names."""


class Call(NamedTuple):
    """A call as a conversation has it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written, piece by piece.

    A block is ``begin opening call closing``. ``joiner`` stands between the calls of one block; where it is
    ``None`` a block has one call, and ``between`` stands between blocks. A call is ``before_name``, the name,
    ``before_arguments``, the arguments as JSON, ``after_arguments``.

    Attributes:
        begin: the marker that says: a call follows.
        end: the marker behind the calls, if there is one; the last thing in ``closing``.
        tokens: markers that are one token each in these models, and may be special ones.
        bare: ``begin`` may be left out, if the call comes first.
        body: makes the parser of what follows ``begin``.
        quoted_name: the name stands in a JSON string.
    """

    name: str
    begin: str
    opening: str
    before_name: str
    before_arguments: str
    after_arguments: str
    closing: str
    body: Callable[[], CallBody]
    end: str = ""
    joiner: str | None = None
    between: str = ""
    bare: bool = False
    quoted_name: bool = True
    tokens: tuple[str, ...] = ()

    def write(self, calls: Sequence[Call]) -> str:
        """The text of these calls, as the model itself would have written it."""
        written = [self.head(call.name) + to_json(call.arguments) + self.after_arguments for call in calls]
        begin = "" if self.bare else self.begin
        if self.joiner is not None:
            return begin + self.opening + self.joiner.join(written) + self.closing
        return self.between.join(begin + self.opening + call + self.closing for call in written)

    def head(self, name: str) -> str:
        """A call up to its arguments."""
        spelt = to_json(name)[1:-1] if self.quoted_name else name
        return self.before_name + spelt + self.before_arguments


def to_json(value: object) -> str:
    """JSON as templates write it (``tojson``): keys in their order, characters as they are."""
    return json.dumps(value, ensure_ascii=False)
