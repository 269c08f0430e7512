"""What HTTP adds: the same prompts answered by `octavo.LLM` in this process, and by Octavo's server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.errors import PeerError
from benchmarks.peers.recipe import Recipe
from benchmarks.serving.answer import Answer, read
from benchmarks.serving.chat import PATH, chat_body
from benchmarks.serving.client import Span, exchange, post
from benchmarks.serving.load import NUM_SYSTEM_TOKENS, Message, Passages
from octavo import LLM, SamplingParams

NUM_STREAMS = 16
NUM_PROMPT_TOKENS = 128
NUM_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work in seconds, done right after each other; ``client``: those that the HTTP client itself was busy."""

    llm: float
    http: float
    client: float = 0.0

    @property
    def ratio(self) -> float:
        return self.http / self.llm

    @property
    def added(self) -> float:
        return self.http - self.llm


class Overhead:
    """``llm`` and the server at ``port`` hold the same model with the same settings; each idles while the other works.

    Both get text and give text. Prompts are cached by both before the clock runs, so it is decoding that is timed.
    """

    def __init__(self, llm: LLM, port: int, recipe: Recipe, model: str, passages: Passages) -> None:
        self._llm = llm
        self._port = port
        self._recipe = recipe
        self._model = model
        self._passages = passages

    def streams(self, http_first: bool) -> Pair:
        """`NUM_STREAMS` replies of `NUM_TOKENS` tokens each, streamed at once, beside `LLM.generate`.

        Raises:
            PeerError: the server fails, or its replies are not those of `LLM`.
        """
        prompts = [self._passages.take(NUM_PROMPT_TOKENS) for _ in range(NUM_STREAMS)]
        self._generate(prompts, 1)
        self._complete(prompts, 1)
        if http_first:
            span = self._complete(prompts, NUM_TOKENS)
            seconds, texts = self._generate(prompts, NUM_TOKENS)
        else:
            seconds, texts = self._generate(prompts, NUM_TOKENS)
            span = self._complete(prompts, NUM_TOKENS)
        self._check(span, texts)
        return Pair(seconds, span.seconds, span.client_seconds)

    def first_tokens(self, repeats: int) -> list[Pair]:
        """The first token of a chat whose system prompt has `NUM_SYSTEM_TOKENS` tokens, all cached. Raises as above."""
        messages = [
            {"role": "system", "content": self._passages.take(NUM_SYSTEM_TOKENS)},
            {"role": "user", "content": "What is this about?"},
        ]
        pairs = []
        for turn in range(repeats + 1):
            if turn % 2:
                llm, http = self._first_of_llm(messages), self._first_of_http(messages)
            else:
                http, llm = self._first_of_http(messages), self._first_of_llm(messages)
            pairs.append(Pair(llm, http.first))
        return pairs[1:]  # the first one filled the caches

    def _generate(self, prompts: Sequence[str], num_tokens: int) -> tuple[float, list[str]]:
        began = time.perf_counter()
        outputs = self._llm.generate(list(prompts), _exactly(num_tokens), use_tqdm=False)
        return time.perf_counter() - began, [output.outputs[0].text for output in outputs]

    def _complete(self, prompts: Sequence[str], num_tokens: int) -> Span:
        requests = [
            post(
                "/v1/completions",
                {
                    "model": self._model,
                    "prompt": prompt,
                    "temperature": 0,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    **self._recipe.exact_length(num_tokens),
                },
            )
            for prompt in prompts
        ]
        return exchange(self._port, requests)

    def _check(self, span: Span, texts: Sequence[str]) -> None:
        answers = {reply.user: read(reply, NUM_TOKENS) for reply in span.replies}
        for user, text in enumerate(texts):
            if answers[user].text != text:
                raise PeerError(f"the server answers prompt {user} with {answers[user].text!r}, and LLM with {text!r}")

    def _first_of_llm(self, messages: list[Message]) -> float:
        began = time.perf_counter()
        increments = self._llm.chat(messages, _exactly(1), stream=True)
        next(increments)
        seconds = time.perf_counter() - began
        for _ in increments:
            pass
        return seconds

    def _first_of_http(self, messages: list[Message]) -> Answer:
        body = chat_body(messages, 1, self._recipe, self._model)
        (reply,) = exchange(self._port, [post(PATH, body)]).replies
        return read(reply, 1)


def _exactly(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, min_tokens=num_tokens)
