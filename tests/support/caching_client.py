"""Anthropic's SDK as tenants of a server whose clock stands still, and figures worked out from the text of prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from anthropic import Anthropic
from anthropic.types import Message
from live_server import LiveServer, live_server
from standing_clock import Clock

from octavo.server.anthropic.schema import CountTokensRequest
from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

END = "<|im_end|>\n"
_MOST_TENANTS = 200


class Figures(NamedTuple):
    """Of a prompt: tokens that were read, written for an hour, written for five minutes, and the others."""

    read: int
    hour: int
    five: int
    input: int


@dataclass
class Tenant:
    """One of a server's tenants. What it sends is counted too, so that all figures are checked against all."""

    live: LiveServer
    clock: Clock
    sdk: Anthropic

    def ask(self, **fields: Any) -> Message:
        """A greedy message of one token, or as ``fields`` say."""
        asked = {"model": self.live.model, "max_tokens": 1, **fields}
        asked["extra_body"] = {"temperature": 0, **fields.get("extra_body", {})}
        return self.sdk.messages.create(**asked)

    def figures(self, **fields: Any) -> Figures:
        """What a message is told of its prompt; all of it together is the prompt."""
        found = figures(self.ask(**fields))
        unasked = ("max_tokens", "diagnostics", "temperature")
        counted = {name: value for name, value in fields.items() if name not in unasked}
        assert sum(found) == self.sdk.messages.count_tokens(model=self.live.model, **counted).input_tokens
        assert sum(found) == len(self.tokens(self.text(fields)))
        return found

    def expected(self, fields: dict[str, Any], read: str = "", hour: str = "", five: str = "") -> Figures:
        """The contract's: read up to the end of the one text, written for an hour up to that of the next, and so on."""
        a = self.upto(fields, read)
        b = max(a, self.upto(fields, hour))
        c = max(b, self.upto(fields, five))
        return Figures(a, b - a, c - b, len(self.tokens(self.text(fields))) - c)

    def upto(self, fields: dict[str, Any], words: str) -> int:
        """Tokens of the prompt up to the end of ``words``, with the message where that ends there; else without the
        last word, for what follows may be joined to it.
        """
        if not words:
            return 0
        text = self.text(fields)
        end = text.index(words) + len(words)
        if text[end:].startswith(END):
            return len(self.tokens(text[:end] + END))
        return len(self.tokens(text[: [m.start() for m in re.finditer(r"(?<=\S)\s+\S", text[:end])][-1]]))

    def tokens(self, text: str) -> list[int]:
        return self.live.engine.tokenizer.encode(text, add_special_tokens=False)

    def text(self, fields: dict[str, Any]) -> str:
        """The prompt as the template writes it, from a request without marks."""
        kept = ("messages", "system", "tools")
        body = {"model": "m", **{name: unmarked(fields[name]) for name in kept if name in fields}}
        request = CountTokensRequest.model_validate(body).chat_request()
        is_open = request.continues_final_message
        rendered = self.live.engine.assembly.render(
            request.messages, tools=request.tools or None, continue_final_message=is_open
        )
        return rendered.text


@dataclass
class Caches:
    """A server, and as many tenants as are asked for, none of whom has anything cached."""

    live: LiveServer
    clock: Clock
    numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def tenant(self, number: int | None = None) -> Iterator[Tenant]:
        """A new one, or the one of that number again."""
        key = _key(next(self.numbers) if number is None else number)
        with Anthropic(base_url=self.live.url, api_key=key, max_retries=0, timeout=60) as sdk:
            yield Tenant(self.live, self.clock, sdk)


@contextmanager
def caches(live: LiveServer, secret: bytes, **settings: Any) -> Iterator[Caches]:
    """Serve the engine of ``live`` anew; ``secret``: one for each such server, so that no two share what is cached."""
    keys = KeyRing([Key.of(_key(number), f"tenant-{number}") for number in range(_MOST_TENANTS)], secret)
    clock = Clock()
    with live_server(live.engine, ServerConfig(shutdown_timeout=1, **settings), keys=keys, clock=clock) as server:
        yield Caches(server, clock)


def figures(message: Message) -> Figures:
    """Those of a message, which agree with each other."""
    usage = message.usage
    assert usage.cache_creation is not None and usage.cache_read_input_tokens is not None
    hour, five = usage.cache_creation.ephemeral_1h_input_tokens, usage.cache_creation.ephemeral_5m_input_tokens
    assert usage.cache_creation_input_tokens == hour + five
    return Figures(usage.cache_read_input_tokens, hour, five, usage.input_tokens)


def unmarked(value: Any) -> Any:
    """Without ``cache_control``, at any depth."""
    if isinstance(value, dict):
        return {name: unmarked(item) for name, item in value.items() if name != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def _key(number: int) -> str:
    return f"octavo-key-of-tenant-{number:04}"
