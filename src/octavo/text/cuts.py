"""Where a text may be cut so that whatever follows changes no token before the cut.

Equal characters are not yet equal tokens. Of " th" and "e", written one after the other, a tokenizer makes one
token; and of "abc" it may make "a" and "bc" where it makes "ab" and "d" of "abd", so that not even the last token
boundary before the "c" is one that stays. Two things stay whatever comes:

* a special token ends there: text is split at them before anything else is done;
* a word ends there, and white space and the beginning of another word follow: no tokenizer looks further.
"""

from __future__ import annotations

import re

from tokenizers import Encoding

from octavo.text.tokenizer import Tokenizer

_END_OF_WORD = re.compile(r"\S[ \n]+(?=\S)")
_WINDOW = 256  # characters: words are shorter
LONGEST_MARK = 64
"""Characters: special tokens are shorter."""


class TokenCuts:
    """The token boundaries of one text that was tokenised as a whole."""

    def __init__(self, text: str, encoding: Encoding, token_ids: list[int], tokenizer: Tokenizer) -> None:
        self._text = text
        self._encoding = encoding
        self._ids = token_ids
        self._tokenizer = tokenizer

    def before(self, char: int) -> int:
        """Tokens up to the last boundary at or before character ``char``."""
        if char == 0:
            return 0
        for at in range(char, len(self._text)):
            token: int | None = self._encoding.char_to_token(at)
            if token is not None:
                return token
        return len(self._ids)

    def char(self, tokens: int) -> int:
        """Where the text of the first ``tokens`` tokens ends."""
        chars: tuple[int, int] | None = self._encoding.token_to_chars(tokens - 1) if tokens else None
        return 0 if chars is None else chars[1]

    def settled(self, char: int) -> int:
        """Tokens at or before character ``char`` that stay what they are, whatever stands from there on."""
        floor = self.before(self._last_word(char))
        for count in range(self.before(char), floor, -1):
            if self._tokenizer.is_special(self._ids[count - 1]):
                return count
        return floor

    def between_marks(self, char: int, others: list[str]) -> bool:
        """Whether a special token follows at ``char`` here, and in the ``others`` too (what follows there, or its
        first :data:`LONGEST_MARK` characters), as far as anything does. Then the boundary at ``char`` stays.
        """
        marks = [self._begins_with_mark(rest) for rest in (self._text[char : char + LONGEST_MARK], *others) if rest]
        return bool(marks) and all(marks)

    def _last_word(self, char: int) -> int:
        """Where the last word ends that stands before another; 0 if none does."""
        window = _WINDOW
        while True:
            start = max(0, char - window)
            found = [match.start() + 1 for match in _END_OF_WORD.finditer(self._text, start, char)]
            if found:
                return found[-1]
            if start == 0:
                return 0
            window *= 8

    def _begins_with_mark(self, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return bool(ids) and self._tokenizer.is_special(ids[0])
