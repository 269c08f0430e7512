"""SamplingParams: how one request's tokens are drawn and when it ends. Frozen, validated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from octavo.errors import InvalidRequestError, shown
from octavo.text.grammar import StructuredOutputsParams

MAX_LOGPROBS = 20
"""Most alternatives reported beside a token."""
MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 4096
"""Of one stop string: looking for it takes memory for each of its characters, in each answer."""
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn, in the shape users know from vLLM.

    Attributes:
        n: independent answers to the same prompt, whose blocks they share.
        temperature: 0 is greedy.
        top_p: keep the likeliest tokens that together reach this probability; 1 keeps all.
        top_k: keep this many of the likeliest tokens; 0 or -1 keeps all.
        min_p: drop tokens less likely than this share of the likeliest one.
        presence_penalty, frequency_penalty: -2 to 2, counted over the output.
        repetition_penalty: from 0.01; above 1 discourages tokens of prompt and output.
        logit_bias: added to a token's logit, -100 to 100, by token id.
        seed: makes the draws repeatable; without one the engine draws a seed.
        stop: strings that end the answer; one string or several.
        stop_token_ids: tokens that end the answer, beside the model's own end-of-sequence tokens.
        ignore_eos: generate past the model's end-of-sequence tokens.
        max_tokens: most tokens to generate. 0 computes and caches the prompt only; ``None``: up to the
            context.
        min_tokens: no end-of-sequence token, stop token or stop string ends the answer before this many.
        logprobs: log-probability of each token and of this many alternatives, 0 to 20.
        prompt_logprobs: the same for the prompt's tokens. Such a request does not read the prefix cache.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string, or the stop token's text, in the text.
        allowed_token_ids: only these may be drawn.
        structured_outputs: what the answer must look like: JSON, a regular expression, one of some texts, a
            grammar. It goes neither with ``ignore_eos`` nor with ``min_tokens``.
        skip_reading_prefix_cache: compute the whole prompt, whatever is cached; what is computed is still
            shared.
        use_cache: ``False`` recomputes every token at every step and neither reads nor writes shared blocks.
            It is slow on purpose: the comparison that shows what the cache saves.

    Raises:
        InvalidRequestError: on construction; ``param`` names the field, the message what was given and
        allowed.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    skip_reading_prefix_cache: bool = False
    use_cache: bool = True

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, MAX_CHOICES)
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, above=True)
        _whole("top_k", self.top_k, -1, _INT32_MAX)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, _INT32_MAX)
        _whole("min_tokens", self.min_tokens, 0, _INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}); got {self.min_tokens}",
                param="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} must be True or False; got {shown(getattr(self, name))}", param=name)
        # From here on they are Python's own numbers, whatever library's they came as.
        for kind, names in ((int, _WHOLES), (float, _REALS)):
            for name in names:
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, kind(getattr(self, name)))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        stop_token_ids = () if self.stop_token_ids is None else self.stop_token_ids
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", stop_token_ids))
        if self.allowed_token_ids is not None:
            allowed = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise InvalidRequestError(
                    "allowed_token_ids must name at least one token, or be None; got an empty list",
                    param="allowed_token_ids",
                )
            object.__setattr__(self, "allowed_token_ids", allowed)
        if self.structured_outputs is not None:
            self._check_structured_outputs()

    def _check_structured_outputs(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise InvalidRequestError(
                f"structured_outputs must be StructuredOutputsParams or None; got {shown(self.structured_outputs)}",
                param="structured_outputs",
            )
        # The answer ends where its grammar does, which neither of these would let it.
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InvalidRequestError(
                    f"{name} cannot be used with structured_outputs, which say where the answer ends; "
                    f"got {getattr(self, name)}",
                    param=name,
                )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as it was normalised: a tuple of non-empty strings."""
        return tuple(self.stop or ())

    @property
    def counts_tokens(self) -> bool:
        """Whether a penalty needs to know the tokens so far."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


_FLAGS = (
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "skip_reading_prefix_cache",
    "use_cache",
)


_WHOLES = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
_REALS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise InvalidRequestError(f"{name} must be a whole number from {low} to {high}; got {shown(value)}", param=name)


def _real(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    # Compared as it is: NaN lies in no range, and a whole number too long for a float is refused like any other.
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not low <= value <= high or (above and value == low):  # type: ignore[operator]
        bounds = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise InvalidRequestError(f"{name} must be a number {bounds}; got {shown(value)}", param=name)


def _logit_bias(bias: object) -> Mapping[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise InvalidRequestError(
            f"logit_bias must map token ids to numbers from -100 to 100; got {shown(bias)}", param="logit_bias"
        )
    for token, value in bias.items():
        _whole("logit_bias", token, 0, _INT32_MAX)
        _real("logit_bias", value, -100.0, 100.0)
    return {int(token): float(value) for token, value in bias.items()}


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    valid = isinstance(strings, Sequence) and all(isinstance(text, str) and text for text in strings)
    if not valid or len(strings) > MAX_STOP_STRINGS:  # type: ignore[arg-type]
        raise InvalidRequestError(
            f"stop must be one to {MAX_STOP_STRINGS} non-empty strings; got {shown(stop)}", param="stop"
        )
    longest = max((len(text) for text in strings), default=0)  # type: ignore[attr-defined]
    if longest > MAX_STOP_CHARACTERS:
        raise InvalidRequestError(
            f"stop must be of at most {MAX_STOP_CHARACTERS:,} characters each; got one of {longest:,}", param="stop"
        )
    return tuple(strings)  # type: ignore[arg-type]


def _token_ids(name: str, tokens: object) -> tuple[int, ...]:
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sequence):
        raise InvalidRequestError(f"{name} must be a list of token ids; got {shown(tokens)}", param=name)
    for token in tokens:
        _whole(name, token, 0, _INT32_MAX)
    return tuple(dict.fromkeys(int(token) for token in tokens))
