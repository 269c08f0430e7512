"""The chat load on one server: every user's turns, and what each reply took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.peers.recipe import Recipe
from benchmarks.serving.answer import Answer, read
from benchmarks.serving.client import Reply, exchange, post
from benchmarks.serving.load import NUM_REPLY_TOKENS, ChatLoad, Message

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ChatRound:
    """One load, served once from empty caches. Seconds from the first request to the last byte."""

    answers: Sequence[Answer]
    seconds: float
    client_seconds: float

    @property
    def requests_per_second(self) -> float:
        return len(self.answers) / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.seconds

    @property
    def num_prompt_tokens(self) -> int:
        return sum(answer.num_prompt_tokens for answer in self.answers)

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens, by the server's own count."""
        return sum(answer.num_cached_tokens for answer in self.answers) / self.num_prompt_tokens

    @property
    def median_first(self) -> float:
        """Seconds to the first token."""
        return median(answer.first for answer in self.answers)

    @property
    def p95_first(self) -> float:
        return quantiles([answer.first for answer in self.answers], n=20, method="inclusive")[-1]


def play(load: ChatLoad, port: int, recipe: Recipe, model: str) -> ChatRound:
    """Raises:
    PeerError: the server fails, or a reply is not as long as asked.
    """
    said: list[list[Message]] = [load.first(user) for user in range(len(load.turns))]
    answers: list[Answer] = []

    def request(messages: Sequence[Message]) -> bytes:
        return post(PATH, chat_body(messages, NUM_REPLY_TOKENS, recipe, model))

    def then(reply: Reply) -> bytes | None:
        answer = read(reply, NUM_REPLY_TOKENS)
        answers.append(answer)
        following = load.next(reply.user, said[reply.user], answer.text)
        if following is None:
            return None
        said[reply.user] = following
        return request(following)

    span = exchange(port, [request(messages) for messages in said], then)
    return ChatRound(answers, span.seconds, span.client_seconds)


def warm_up(port: int, recipe: Recipe, model: str) -> None:
    """A request with nothing of the load in it, so that what an engine does at its first request is done."""
    body = chat_body([{"role": "user", "content": "Name three rivers, and say where they end."}], 16, recipe, model)
    (reply,) = exchange(port, [post(PATH, body)]).replies
    read(reply, 16)


def chat_body(messages: Sequence[Message], num_tokens: int, recipe: Recipe, model: str) -> dict[str, object]:
    """A request for a streamed, greedy reply of just so many tokens."""
    return {
        "model": model,
        "messages": list(messages),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **recipe.exact_length(num_tokens),
    }
