"""Log-probabilities as OpenAI's two APIs report them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from octavo.engine.outputs import Logprob, TokenLogprobs
from octavo.text.tokenizer import Tokenizer

LEAST = -9999.0
"""What stands for a log-probability that JSON has no number for."""


class ChatLogprobs:
    """Chat completions: one entry for each token that was drawn, also of those that are not part of the text.

    Args:
        num_top: how many alternatives to report beside a token; ``None``: nothing was asked for.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int | None) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top

    def of(self, logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        """``logprobs`` of a choice."""
        if self._num_top is None:
            return None
        return {"content": [self._entry(token, self._num_top) for token in logprobs or ()], "refusal": None}

    def _entry(self, position: TokenLogprobs, num_top: int) -> dict[str, Any]:
        likeliest = sorted(position.items(), key=lambda item: -item[1].logprob)[:num_top]
        drawn = next(iter(position.items()))
        return {**self._token(*drawn), "top_logprobs": [self._token(*item) for item in likeliest]}

    def _token(self, token: int, found: Logprob) -> dict[str, Any]:
        spelt = self._tokenizer.token_bytes(token)
        return {"token": spelt.decode("utf-8", "replace"), "logprob": _finite(found.logprob), "bytes": list(spelt)}


class TextLogprobs:
    """Completions: four lists side by side. Keeps state: a chunk's offsets go on where those of the last one ended.

    A token that is no text on its own is written as its bytes: ``bytes:\\xe2\\x80``. ``text_offset`` counts characters
    of the text, in which a special token that is left out has none.

    Args:
        skip_special_tokens: whether the text was made without them.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._pieces = tokenizer.pieces(skip_special_tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of_prompt(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, list[Any]]:
        """Of an echoed prompt; its first token follows nothing, so it has no probability."""
        if self._tokenizer.strips_leading_space:
            self._offset = -1
        return self._lists(zip(tokens, logprobs, strict=True))

    def of(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> dict[str, list[Any]]:
        """Of drawn tokens."""
        return self._lists(zip(tokens, logprobs or (), strict=True))

    def _lists(self, entries: Any) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, position in entries:
            lists["tokens"].append(self._spelt(token))
            lists["token_logprobs"].append(None if position is None else _finite(position[token].logprob))
            lists["top_logprobs"].append(None if position is None else self._top(position))
            lists["text_offset"].append(max(0, self._offset))
            self._offset += len(self._decoder.decode(self._pieces[token]))
        return lists

    def _top(self, position: TokenLogprobs) -> dict[str, float]:
        likeliest = sorted(position.items(), key=lambda item: -item[1].logprob)
        return {self._spelt(token): _finite(found.logprob) for token, found in reversed(likeliest)}

    def _spelt(self, token: int) -> str:
        piece = self._tokenizer.token_bytes(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def mean_logprob(tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> float:
    """Log-probability per token, by which the best of several answers is known."""
    drawn = [_finite(position[token].logprob) for token, position in zip(tokens, logprobs or (), strict=True)]
    return sum(drawn) / len(drawn) if drawn else 0.0


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
