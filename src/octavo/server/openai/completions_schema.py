"""What a request for completions may hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Tag

from octavo.engine.sampling_params import MAX_CHOICES, MAX_LOGPROBS, SamplingParams
from octavo.server.errors import invalid
from octavo.server.openai.fields import told_apart
from octavo.server.openai.sampling import SamplingBody
from octavo.server.openai.wording import Wording, output_fields
from octavo.server.requests import PlainRequest
from octavo.server.validation import unsupported

DEFAULT_MAX_TOKENS = 16


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return "(text)"
    if not isinstance(value, list) or not value:
        return None
    return "(texts)" if isinstance(value[0], str) else "(lists)" if isinstance(value[0], list) else "(tokens)"


def _no_suffix(suffix: Any) -> Any:
    if suffix not in (None, ""):
        raise unsupported("No text can be filled in before another")
    return suffix


_Prompt = Annotated[
    Annotated[str, Tag("(text)")]
    | Annotated[list[str], Tag("(texts)")]
    | Annotated[list[int], Tag("(tokens)")]
    | Annotated[list[list[int]], Tag("(lists)")],
    told_apart(_form, "a text, token ids, or a list of several texts or of several lists of token ids"),
]


class CompletionRequest(SamplingBody):
    """``POST /v1/completions``: the fields of OpenAI's API, and vLLM's extras."""

    prompt: _Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Annotated[str | None, BeforeValidator(_no_suffix)] = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of the prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else [*self.prompt]

    @property
    def num_choices(self) -> int:
        """Answers to each prompt that are given back."""
        return self.n or 1

    @property
    def num_drawn(self) -> int:
        """Answers to each prompt that are drawn, of which those are the best."""
        return self.best_of or self.num_choices

    @property
    def chooses(self) -> bool:
        return self.num_drawn > self.num_choices

    def plain_requests(self) -> list[PlainRequest]:
        """One for each prompt, as every dialect has them.

        Raises:
            ApiError, InvalidRequestError: two fields contradict each other, or a value is out of range.
        """
        sampling, caching = self._sampling(), self.caching()
        return [
            PlainRequest(prompt=prompt, sampling=sampling, caching=caching, cache=self.cache) for prompt in self.prompts
        ]

    def _sampling(self) -> SamplingParams:
        self.check_stream_options()
        if self.num_drawn < self.num_choices:
            raise invalid(f"best_of must be at least n ({self.num_choices}); got {self.best_of}", "best_of")
        if self.chooses and self.stream:
            raise invalid("best_of above n cannot be streamed: which answers are best is known at the end", "best_of")
        output = None if self.structured_outputs is None else self.structured_outputs.params()
        params = self.sampling_params(
            n=self.num_drawn,
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=0 if self.logprobs is None and self.chooses else self.logprobs,
            structured_outputs=output,
        )
        return replace(params, prompt_logprobs=self.logprobs) if self.echo else params

    def wording(self, place: int) -> Wording:
        """``place``: of the prompt among all of them."""
        fields = output_fields({} if self.structured_outputs is None else self.structured_outputs.names, False)
        places = {"prompt": f"prompt[{place}]"} if len(self.prompts) > 1 else {}
        if self.max_tokens is None:
            places["max_tokens"] = places.get("prompt", "prompt")
        if self.best_of is not None:
            places["n"] = "best_of"
        return Wording(fields, places)
