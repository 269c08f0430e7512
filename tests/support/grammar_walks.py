"""Walking through grammars by their masks alone: what may come next, and what an impartial writer would write."""

from __future__ import annotations

import random

import numpy as np

from octavo.text.grammar import Grammar
from octavo.text.tokenizer import Tokenizer


def allowed_tokens(grammar: Grammar, vocab_size: int) -> list[int]:
    """The tokens that a mask of ``vocab_size`` bits allows; the array held something else before."""
    mask = np.full(-(-vocab_size // 32), -1, np.int32)
    grammar.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def follow(grammar: Grammar, tokens: list[int], vocab_size: int) -> None:
    """Write ``tokens``, each of which must be allowed."""
    for index, token in enumerate(tokens):
        assert token in allowed_tokens(grammar, vocab_size), f"token {token} at {index} of {tokens} is not allowed"
        grammar.accept(token)
    assert grammar.failure is None


def written(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """The text of ``tokens``, to the byte: it must be Unicode, and nothing is taken off it."""
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


def wander(grammar: Grammar, tokenizer: Tokenizer, seed: int, max_tokens: int = 200) -> tuple[list[int], bool]:
    """Draw evenly from what is allowed, the end whenever it is, until the end; and whether it was reached."""
    draw = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        allowed = allowed_tokens(grammar, tokenizer.vocab_size)
        if grammar.is_finished or tokenizer.eos_token_ids.intersection(allowed):
            return tokens, True
        assert allowed, grammar.failure
        tokens.append(draw.choice(allowed))
        grammar.accept(tokens[-1])
    return tokens, grammar.is_finished


def every_text(grammar: Grammar, tokenizer: Tokenizer, so_far: tuple[int, ...] = ()) -> set[str]:
    """Every text that a grammar of finitely many allows."""
    if grammar.is_finished:
        return {written(tokenizer, list(so_far))}
    texts: set[str] = set()
    for token in allowed_tokens(grammar, tokenizer.vocab_size):
        if token in tokenizer.eos_token_ids:
            texts.add(written(tokenizer, list(so_far)))
        else:
            branch = grammar.copy()
            branch.accept(token)
            texts |= every_text(branch, tokenizer, (*so_far, token))
    return texts
