"""Intake: everything that can be wrong with a request is found here, before it costs anything."""

from __future__ import annotations

import operator
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypedDict

from octavo.engine.request import RequestGroup
from octavo.engine.sampling_params import SamplingParams
from octavo.errors import ContextLengthError, InvalidRequestError, shown
from octavo.text.chat import RenderedChat
from octavo.text.grammar import Grammar, GrammarCompiler
from octavo.text.tokenizer import Tokenizer, check_text

MAX_TIMEOUT = 1e9
"""Seconds; more is a mistake, or a request that has no deadline."""


class PromptFields(TypedDict, total=False):
    """``prompt`` is a text, tokenised as it stands; with ``prompt_token_ids`` it is only reported back."""

    prompt: str
    prompt_token_ids: Sequence[int]


Prompt: TypeAlias = str | Sequence[int] | PromptFields
"""Text, token ids, or a mapping."""


class RequestOptions(NamedTuple):
    """What a caller may say about a request beside how to sample.

    ``priority``: lower runs first. ``cache_salt``: requests share cached blocks only under equal salts.
    ``timeout``: seconds from now after which the answer ends as it is, with finish_reason ``"timeout"``.
    ``retain``: (tokens of the prompt, from its beginning; seconds from now for which their blocks are evicted after
    all others, within the engine's ``retention_budget``), as many as one likes.
    """

    priority: int = 0
    cache_salt: str | bytes = b""
    timeout: float | None = None
    retain: Sequence[tuple[int, float]] = ()


class Intake:
    """Turns prompts into validated request groups. Changes nothing, so any thread may use it.

    Args:
        tokenizer: ``None`` for a model that is driven by token ids alone.
        max_model_len: most tokens of prompt and output together.
        pool_tokens: most tokens the KV memory holds of one request; ``None`` for any number.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        max_model_len: int,
        pool_tokens: int | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.pool_tokens = pool_tokens
        self._grammars = None if tokenizer is None else GrammarCompiler(tokenizer, vocab_size, eos_token_ids)

    def accept(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> RequestGroup:
        """Check a request and make its group.

        Raises:
            InvalidRequestError: the prompt is empty, not a prompt, or names unknown tokens; or a parameter
                does not fit this model, or is a schema or a grammar that makes no sense.
            ContextLengthError: prompt and output together are more than the context or the KV memory holds.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params must be SamplingParams; got {type(params).__name__}",
                param="sampling_params",
            )
        if request_id is not None and not isinstance(request_id, str):
            raise InvalidRequestError(f"request_id must be text; got {type(request_id).__name__}", param="request_id")
        text, token_ids = self._tokenise(prompt)
        self._check_params(params)
        now = time.monotonic()
        priority, cache_salt, timeout, retain = _check_options(options or RequestOptions(), len(token_ids))
        return RequestGroup(
            request_id or uuid.uuid4().hex,
            text,
            token_ids,
            params,
            max_output_tokens=self._max_output_tokens(len(token_ids), params),
            grammar=self._grammar(params),
            arrival_time=now,
            priority=priority,
            deadline=None if timeout is None else now + timeout,
            cache_salt=cache_salt,
            retain=[(num_tokens, now + seconds) for num_tokens, seconds in retain],
        )

    def banned_before_minimum(self, params: SamplingParams) -> tuple[int, ...]:
        """Tokens that may not be drawn before ``min_tokens``: those that would end the answer."""
        if not params.min_tokens:
            return ()
        eos = () if params.ignore_eos else tuple(sorted(self.eos_token_ids))
        return (*eos, *(params.stop_token_ids or ()))

    def _tokenise(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        text: object
        tokens: object
        if isinstance(prompt, Mapping):
            if not prompt or set(prompt) - {"prompt", "prompt_token_ids"}:
                raise InvalidRequestError(
                    f"a prompt mapping has 'prompt', 'prompt_token_ids', or both; got {shown(list(prompt))}",
                    param="prompt",
                )
            text, tokens = prompt.get("prompt"), prompt.get("prompt_token_ids")
        elif isinstance(prompt, str):
            text, tokens = prompt, None
        else:
            text, tokens = None, prompt
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"'prompt' must be text; got {type(text).__name__}", param="prompt")
        if tokens is not None or text is None:
            return text, self.check_tokens(tokens)
        if self.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; give token ids", param="prompt")
        return text, self.check_tokens(self.tokenizer.encode(text))

    def check_tokens(self, tokens: object) -> list[int]:
        """A prompt that is given as token ids, checked.

        Raises:
            InvalidRequestError: it is none, is empty, or names unknown tokens.
        """
        if isinstance(tokens, (str, bytes, Mapping)) or not hasattr(tokens, "__iter__"):
            raise InvalidRequestError(
                f"a prompt is a text or a list of token ids; got {type(tokens).__name__}", param="prompt"
            )
        try:
            token_ids = [token if type(token) is int else _as_int(token) for token in tokens]
        except TypeError as error:
            raise InvalidRequestError(f"a token id must be a whole number; {error}", param="prompt") from error
        if not token_ids:
            raise InvalidRequestError("the prompt has no tokens; give at least one", param="prompt")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise InvalidRequestError(
                f"token id {shown(wrong)} is not in this model's vocabulary of 0 to {self.vocab_size - 1}",
                param="prompt",
            )
        return token_ids

    def _check_params(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            wrong = [token for token in getattr(params, name) or () if token >= self.vocab_size]
            if wrong:
                raise InvalidRequestError(
                    f"{name} names token {wrong[0]}; this model's vocabulary is 0 to {self.vocab_size - 1}",
                    param=name,
                )
        if params.stop_strings and self.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer, so it cannot find stop strings", param="stop")
        banned = set(self.banned_before_minimum(params))
        if params.allowed_token_ids is not None and banned.issuperset(params.allowed_token_ids):
            raise InvalidRequestError(
                "every token in allowed_token_ids ends the answer, so min_tokens cannot be reached; "
                "allow others or set min_tokens to 0",
                param="allowed_token_ids",
            )

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        if params.structured_outputs is None:
            return None
        if self._grammars is None:
            raise InvalidRequestError(
                "this model has no tokenizer, so it cannot tell which tokens fit structured_outputs",
                param="structured_outputs",
            )
        return self._grammars.compile(params.structured_outputs)

    def check_prompt_length(self, num_tokens: int) -> None:
        """Refuse a prompt that would not fit even without a reply.

        Raises:
            ContextLengthError: it is more than the context or the KV memory holds.
        """
        what, limit = self._limit
        if num_tokens > limit:
            raise ContextLengthError(
                f"the prompt has {num_tokens:,} tokens; {what} holds {limit:,}", requested=num_tokens, limit=limit
            )

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of prompt and output together."""
        return self._limit[1]

    @property
    def _limit(self) -> tuple[str, int]:
        """Most tokens of prompt and output together, and what it is that holds no more."""
        # The planner lowers the context to what the pool holds: then it is the pool that is too small.
        if self.pool_tokens is not None and self.pool_tokens <= self.max_model_len:
            return "the KV memory", self.pool_tokens
        return "the context", self.max_model_len

    def _max_output_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        self.check_prompt_length(num_prompt_tokens)
        what, limit = self._limit
        wanted = max(1, params.min_tokens) if params.max_tokens is None else params.max_tokens
        total = num_prompt_tokens + wanted
        if total > limit:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens:,} tokens and {wanted:,} more are asked for, "
                f"{total:,} together; {what} holds {limit:,}. Shorten the prompt or lower max_tokens",
                requested=total,
                limit=limit,
                param="max_tokens",
            )
        return limit - num_prompt_tokens if params.max_tokens is None else params.max_tokens


def as_prompt(rendered: RenderedChat) -> PromptFields:
    """A rendered conversation as a prompt that is not tokenised again."""
    return {"prompt": rendered.text, "prompt_token_ids": rendered.prompt_token_ids}


def check_salt(salt: object) -> bytes:
    """A ``cache_salt`` as bytes.

    Raises:
        InvalidRequestError: it is neither text nor bytes.
    """
    if isinstance(salt, str):
        check_text(salt, "cache_salt")
        return salt.encode()
    if not isinstance(salt, bytes):
        raise InvalidRequestError(f"cache_salt must be text or bytes; got {shown(salt)}", param="cache_salt")
    return salt


def check_seconds(seconds: object, param: str) -> None:
    """Refuse what is no time to retain something for.

    Raises:
        InvalidRequestError: it is no number, not above 0, or not finite.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and 0 < seconds <= MAX_TIMEOUT):  # type: ignore[operator]
        raise InvalidRequestError(
            f"{param} must give a number of seconds above 0 and at most {MAX_TIMEOUT:,.0f}; got {shown(seconds)}",
            param=param,
        )


def _check_options(
    options: RequestOptions, num_prompt_tokens: int
) -> tuple[int, bytes, float | None, list[tuple[int, float]]]:
    priority, salt, timeout, retain = options
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidRequestError(f"priority must be a whole number; got {shown(priority)}", param="priority")
    salt = check_salt(salt)
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and 0 < timeout <= MAX_TIMEOUT):
        raise InvalidRequestError(
            f"timeout must be a number of seconds above 0 and at most {MAX_TIMEOUT:,.0f}, or None; "
            f"got {shown(timeout)}",
            param="timeout",
        )
    return priority, salt, timeout, _check_retain(retain, num_prompt_tokens)


def _check_retain(retain: object, num_prompt_tokens: int) -> list[tuple[int, float]]:
    """The pairs of ``retain``, the fewest tokens first."""
    pairs = retain if isinstance(retain, Sequence) and not isinstance(retain, (str, bytes)) else None
    if pairs is None or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InvalidRequestError(
            f"retain must be a list of (tokens of the prompt, seconds); got {shown(retain)}", param="retain"
        )
    for num_tokens, seconds in pairs:
        if type(num_tokens) is not int or not 1 <= num_tokens <= num_prompt_tokens:
            raise InvalidRequestError(
                f"retain must name 1 to {num_prompt_tokens:,} tokens, which the prompt has; got {shown(num_tokens)}",
                param="retain",
            )
        check_seconds(seconds, "retain")
    return sorted((num_tokens, seconds) for num_tokens, seconds in pairs)


def _as_int(token: object) -> int:
    """A token id from another library's integer (numpy, torch)."""
    if isinstance(token, bool):
        raise TypeError(f"got {shown(token)}")
    return operator.index(token)  # type: ignore[arg-type]
