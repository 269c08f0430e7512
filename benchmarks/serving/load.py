"""What the servers are asked: conversations that share a system prompt, and prompts that share nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

NUM_USERS = 8
NUM_TURNS = 6
NUM_SYSTEM_TOKENS = 2000
NUM_REPLY_TOKENS = 64
USER_TOKENS = (30, 60)
"""The least and the most of what a user says in a turn."""

Message = dict[str, str]


class Tokens(Protocol):
    """Of a tokenizer, what is needed here."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Passages:
    """Passages of a text, each of a wanted number of tokens, none of them twice; where they begin follows from the
    seed. A passage that is tokenised by itself may have a token more or less at its ends.
    """

    def __init__(self, tokens: Tokens, text: str, seed: int) -> None:
        self._tokens = tokens
        self._ids = tokens.encode(text)
        self._at = random.Random(seed).randrange(len(self._ids))

    def take(self, num_tokens: int) -> str:
        if self._at + num_tokens > len(self._ids):
            self._at = 0
        start, self._at = self._at, self._at + num_tokens
        return self._tokens.decode(self._ids[start : self._at]).strip()


@dataclass(frozen=True, slots=True)
class ChatLoad:
    """``turns[user]``: what that user says, turn by turn. All begin at once, and each goes on when it has its reply."""

    system: str
    turns: Sequence[Sequence[str]]

    @property
    def num_requests(self) -> int:
        return sum(len(said) for said in self.turns)

    def first(self, user: int) -> list[Message]:
        return [_message("system", self.system), _message("user", self.turns[user][0])]

    def next(self, user: int, so_far: Sequence[Message], reply: str) -> list[Message] | None:
        """The conversation with the reply and what the user says to it; ``None``: nothing more."""
        turn = sum(message["role"] == "user" for message in so_far)
        if turn == len(self.turns[user]):
            return None
        return [*so_far, _message("assistant", reply), _message("user", self.turns[user][turn])]


def chat_load(passages: Passages, seed: int) -> ChatLoad:
    rng = random.Random(seed)
    system = f"You answer questions about a manual, of which this is a part.\n\n{passages.take(NUM_SYSTEM_TOKENS - 15)}"
    turns = [[_question(passages, rng) for _ in range(NUM_TURNS)] for _ in range(NUM_USERS)]
    return ChatLoad(system, turns)


def _question(passages: Passages, rng: random.Random) -> str:
    num_tokens = rng.randint(*USER_TOKENS)
    asks = rng.choice(("What does this mean: ", "Explain this in short: ", "Where do I need this: "))
    return asks + passages.take(num_tokens - 6)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
