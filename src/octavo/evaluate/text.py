"""The text that is predicted: where it comes from, and its tokens in windows of one context each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.errors import ConfigError, shown
from octavo.text.tokenizer import Tokenizer

Int32s = npt.NDArray[np.int32]

MAX_TEXT_BYTES = 64 << 20
"""Of a file: more would take minutes to tokenise, and a run uses a few pages."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its name, by which a report knows it."""

    name: str
    content: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


def default_text() -> Text:
    """The topics of Python's own ``help()``: half a million characters of English that every CPython has."""
    from pydoc_data.topics import topics

    return Text("pydoc_data.topics", "\n\n".join(topics[name] for name in sorted(topics)))


def read_text(path: Path) -> Text:
    """A file of UTF-8.

    Raises:
        ConfigError: there is none, it is no text, or it is more than :data:`MAX_TEXT_BYTES`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise ConfigError(f"cannot read the text {shown(str(path))}: {error}") from error
    if len(data) > MAX_TEXT_BYTES:  # said before decoding, for the end may lie within a character
        raise ConfigError(f"the text {str(path)!r} is larger than {MAX_TEXT_BYTES:,} bytes; give a part of it")
    try:
        content = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the text {str(path)!r} is not UTF-8 (byte {error.start:,}): give a plain text") from error
    return Text(path.name, content)


class Windows:
    """A text in tokens, cut anew for every length of context.

    Attributes:
        prefix: what this model wants before any text: its bos token, or nothing. Every window begins with it.
        text_tokens: the text alone.
    """

    def __init__(self, text: Text, tokenizer: Tokenizer) -> None:
        self.text = text
        ids = tokenizer.encode(text.content)
        bos = tokenizer.bos_token_id
        self.prefix = [bos] if bos is not None and ids[:1] == [bos] else []
        self.text_tokens = np.array(ids[len(self.prefix) :], np.int32)

    def check(self, contexts: Sequence[int]) -> None:
        """See that there is one whole window of each of these lengths.

        Raises:
            ConfigError: there is not; the message says which and how many tokens there are.
        """
        short = [context for context in contexts if len(self.text_tokens) < context - len(self.prefix)]
        if short:
            raise ConfigError(
                f"the text {self.text.name!r} has {len(self.text_tokens):,} tokens, too few for a context of "
                f"{_listed(short)} tokens; give a longer text, or shorter contexts"
            )

    def cut(self, context: int, max_tokens: int) -> list[Int32s]:
        """The first windows of ``context`` tokens, prefix included: ``max_tokens`` of them at most, one at least.

        What is left of the text after the last whole window is dropped.
        """
        step = context - len(self.prefix)
        count = max(min(max_tokens // context, len(self.text_tokens) // step), 1)
        return [
            np.concatenate([np.array(self.prefix, np.int32), self.text_tokens[start : start + step]])
            for start in range(0, count * step, step)
        ]


def _listed(numbers: Sequence[int]) -> str:
    *most, last = [f"{number:,}" for number in numbers]
    return f"{', '.join(most)} or {last}" if most else last
