"""How tokens are drawn: the fields that chat completions and completions have in common, vLLM's extras among them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Tag

from octavo.engine.sampling_params import SamplingParams
from octavo.errors import shown
from octavo.server.errors import invalid
from octavo.server.openai.caching import CachingBody
from octavo.server.openai.fields import StreamOptions, refused, text_or_list, told_apart
from octavo.server.openai.formats import StructuredOutputs

MAX_STOPS, MAX_STOP_TOKENS = 4, 1024
_Words = Annotated[str, Field(min_length=1)]
_Stop = Annotated[
    Annotated[_Words, Tag("(text)")] | Annotated[list[_Words], Field(max_length=MAX_STOPS), Tag("(list)")],
    told_apart(text_or_list, f"text or a list of at most {MAX_STOPS} texts"),
]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


class SamplingBody(CachingBody):
    """Base of both requests. What is ``null`` is not given; see :class:`octavo.SamplingParams` for what they mean."""

    model: str
    cache: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: _Stop | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[_TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: Annotated[None, refused("Completions with echo and logprobs score a prompt")] = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Raises ApiError: they are given, but nothing is streamed (400)."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is for streams; send stream: true with it", "stream_options")

    def sampling_params(self, **own: Any) -> SamplingParams:
        """Parameters with what is given here, and ``own``.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        given = {name: value for name in _SAMPLED if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        return SamplingParams(**{**given, **own})


_SAMPLED = (
    "n",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


def at_most_once(first: str, a: int | None, second: str, b: int | None) -> int | None:
    """One setting under two names.

    Raises:
        ApiError: the two say different things (400); it names the second.
    """
    if a is not None and b is not None and a != b:
        raise invalid(f"{first} and {second} are one setting; they are {shown(a)} and {shown(b)}", second)
    return b if a is None else a
