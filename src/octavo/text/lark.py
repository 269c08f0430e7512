"""Lark grammars as a caller writes them, made ready for llguidance: tokens by their spelling, compact JSON.

Two things in a grammar are rewritten, both outside of strings, regular expressions and comments:

- ``<NAME>`` becomes the number of a token. llguidance knows the names of special tokens alone, and only those that
  stand in angle brackets; here ``<tool_call>`` may be an ordinary added token, and ``<[TOOL_CALLS]>`` is the special
  token ``[TOOL_CALLS]``.
- ``%json {...}`` is written in the style of :data:`JSON_STYLE`, unless its own ``x-guidance`` says otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

JSON_STYLE: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allow_general_unicode_escapes": True,
}
"""JSON as it is written: at most one space, after a comma or a colon (with more, a model can write it without end), and
any ``\\u`` escape in a string but half a surrogate pair."""

_PARTS = re.compile(
    r"""
      "(?:\\.|[^"\\\n])*"            # a string
    | //[^\n]* | \#[^\n]*            # a comment
    | /(?:\\.|[^/\\\n])+/            # a regular expression
    | (?P<json>%json\s*)(?=\{)
    | <(?P<token>[^<>\s]+)>
    """,
    re.VERBOSE,
)


def prepared(lark: str, find_token: Callable[[str], int | None]) -> str:
    """``lark`` with its tokens as numbers and its JSON compact.

    ``find_token``: what stands between ``<`` and ``>`` to a token id; ``None`` leaves it as it is. What is not
    well-formed is left as it is too: llguidance says what is wrong with it, and where.
    """
    parts: list[str] = []
    at = 0
    while (match := _PARTS.search(lark, at)) is not None:
        parts.append(lark[at : match.start()])
        at = match.end()
        token = None if match["token"] is None else find_token(match["token"])
        schema, end = (None, at) if match["json"] is None else _object_at(lark, at)
        if token is not None:
            parts.append(f"<[{token}]>")
        elif schema is not None:
            parts.append(match[0] + json.dumps(_compact(schema)))
            at = end
        else:
            parts.append(match[0])
    return "".join(parts) + lark[at:]


def _object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """The JSON object that begins at ``start``, and its end; ``None`` if there is none, or one nested too deep."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start


def _compact(schema: dict[str, Any]) -> dict[str, Any]:
    given = schema.get("x-guidance", {})
    return {**schema, "x-guidance": {**JSON_STYLE, **given}} if isinstance(given, dict) else schema
