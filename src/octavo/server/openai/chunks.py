"""ChunkWriter: the chunks of a streamed answer. Most hold a piece of text and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_MARK = "OCTAVO_TEXT"

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Writes frames.

    A token of every stream passes here while the native core computes the next ones on the same processors: what all
    chunks have in common is encoded once.

    Args:
        head: the fields that each chunk begins with.
        shape: makes a choice without its index out of a piece of text.
        num_choices: how many answers there are.
        include_usage: a last chunk has the usage, and all others ``null`` in its place.
    """

    def __init__(
        self, head: Mapping[str, Any], shape: Callable[[str], dict[str, Any]], num_choices: int, *, include_usage: bool
    ) -> None:
        self._head = f"data: {_ENCODE(head)[:-1]},"
        usage = ',"usage":null' if include_usage else ""
        self._tail = f"]{usage}}}\n\n"
        before, _, after = _ENCODE(shape(_MARK)).partition(f'"{_MARK}"')
        self._befores = [f'{self._head}"choices":[{{"index":{index},{before[1:]}' for index in range(num_choices)]
        self._after = after + self._tail

    def text(self, index: int, text: str) -> bytes:
        """A chunk that holds ``text``."""
        return f"{self._befores[index]}{encode_basestring_ascii(text)}{self._after}".encode("ascii")

    def choice(self, choice: Mapping[str, Any]) -> bytes:
        """A chunk with any choice, its index included."""
        return f'{self._head}"choices":[{_ENCODE(choice)}{self._tail}'.encode("ascii")

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        return f'{self._head}"choices":[],"usage":{_ENCODE(usage)}}}\n\n'.encode("ascii")
