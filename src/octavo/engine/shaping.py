"""LogitShaping: what one request does to its logits before a draw. Most do nothing and have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.engine.sampling_params import SamplingParams
from octavo.model.runner import Float32s, Int32s
from octavo.text.grammar import Grammar

NO_TOKENS = np.empty(0, np.int32)
NO_VALUES = np.empty(0, np.float32)


class LogitShaping:
    """Penalties, biases and the mask of one request as the native sampler reads them, kept from step to step.

    ``prompt_tokens [p]``: what the repetition penalty counts beside the output. ``grammar``: this answer's own; whoever
    appends a token tells it. ``allowed``: the mask of ``allowed_token_ids``, as of :meth:`mask`; ``None`` allows all.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        banned_token_ids: Sequence[int],
        vocab_size: int,
        grammar: Grammar | None = None,
    ) -> None:
        self._counts = params.counts_tokens
        self._min_tokens = params.min_tokens
        self.prompt_tokens = np.array(prompt_token_ids, np.int32) if self._counts else NO_TOKENS
        self._output = np.empty(64 if self._counts else 0, np.int32)
        self._num_output = 0
        self._bias = _bias_arrays(dict(params.logit_bias))
        self._bias_before_minimum = _bias_arrays({**params.logit_bias, **dict.fromkeys(banned_token_ids, -np.inf)})
        self.grammar = grammar
        self.allowed = None if params.allowed_token_ids is None else _mask(params.allowed_token_ids, vocab_size)
        self._mask = NO_TOKENS if grammar is None else np.empty(-(-vocab_size // 32), np.int32)

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether ``params`` ask for anything that this class does."""
        masked = params.allowed_token_ids is not None or params.structured_outputs is not None
        return bool(params.logit_bias or params.min_tokens) or masked or params.counts_tokens

    def output_tokens(self, token_ids: list[int], num_prompt_tokens: int) -> Int32s:
        """The output so far, recomputed or not, if a penalty counts it; a view, good until the next call."""
        if not self._counts:
            return NO_TOKENS
        num_output = len(token_ids) - num_prompt_tokens
        if num_output > len(self._output):
            self._output = np.concatenate([self._output, np.empty(num_output, np.int32)])
        self._output[self._num_output : num_output] = token_ids[num_prompt_tokens + self._num_output :]
        self._num_output = num_output
        return self._output[:num_output]

    def mask(self) -> Int32s | None:
        """Which tokens may be drawn next, ``[ceil(vocab / 32)]``: bit ``t % 32`` of word ``t // 32`` allows token t.

        ``None`` allows all. Good until the next call.
        """
        if self.grammar is None:
            return self.allowed
        self.grammar.fill_mask(self._mask)
        if self.allowed is not None:
            self._mask &= self.allowed
        return self._mask

    def accept(self, token: int) -> None:
        """Tell the grammar, if there is one, that ``token`` was drawn. Recomputed tokens are not drawn again."""
        if self.grammar is not None:
            self.grammar.accept(token)

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows nothing but the end of the answer."""
        return self.grammar is not None and self.grammar.is_finished

    def bias(self, num_output_tokens: int) -> tuple[Int32s, Float32s]:
        """Tokens and what is added to their logits: -inf for what must not end the answer yet."""
        return self._bias_before_minimum if num_output_tokens < self._min_tokens else self._bias


def _bias_arrays(bias: dict[int, float]) -> tuple[Int32s, Float32s]:
    if not bias:
        return NO_TOKENS, NO_VALUES
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)


def _mask(allowed: Sequence[int], vocab_size: int) -> Int32s:
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
