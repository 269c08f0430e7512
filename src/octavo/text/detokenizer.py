"""IncrementalDetokenizer: token ids in, text out, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from octavo.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Turns one sequence's output tokens into text as they come. One for each sequence; it keeps state.

    What it emits, joined, is the one-shot decoding of all output tokens. A token costs a table look-up and a
    pass over its own bytes. Bytes that begin a character wait until it is complete; bytes that cannot be
    UTF-8 become U+FFFD as soon as that is certain, at the latest in :meth:`flush`.

    Sentencepiece vocabularies write the space before a word into its token, and one such space at the start
    of a text is not part of it. Output that follows a prompt does not start a text, so there the space stays
    and prompt and output can be joined as they are.
    """

    __slots__ = ("_decode", "_pieces", "_strip")

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        """``prompt_ids``: what precedes the output. Only whether it holds any text matters."""
        self._pieces = tokenizer.pieces(skip_special_tokens)
        self._decode = _Utf8Decoder("replace").decode
        self._strip = tokenizer.strips_leading_space and not any(self._pieces[id_] for id_ in prompt_ids)

    def append(self, token_ids: Iterable[int]) -> str:
        """The text these tokens complete: often one piece, possibly none."""
        pieces = self._pieces
        return self._emit(self._decode(b"".join([pieces[token_id] for token_id in token_ids])))

    def flush(self) -> str:
        """The end: bytes still waiting for the rest of their character become U+FFFD."""
        return self._emit(self._decode(b"", True))

    def _emit(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
