"""Clients of the shared server, as users of the SDK make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from anthropic.types import Message
from live_server import LiveServer

Ask = Callable[..., Message]


@pytest.fixture
def client(live: LiveServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=60) as anthropic_client:
        yield anthropic_client


@pytest.fixture
def ask(client: Anthropic, live: LiveServer) -> Ask:
    """One greedy message."""

    def ask(content: Any, *, max_tokens: int = 24, temperature: float = 0, **fields: Any) -> Message:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        fields = {"model": live.model, "max_tokens": max_tokens, "messages": messages, **fields}
        fields["extra_body"] = {"temperature": temperature, **fields.get("extra_body", {})}
        return client.messages.create(**fields)

    return ask


@pytest.fixture
def post(live: LiveServer) -> Callable[..., httpx.Response]:
    """A request as it stands, for what the SDK would not send."""

    def post(body: Any = None, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
        base = {"model": live.model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
        content = json.dumps({**base, **fields} if body is None else body)  # in ASCII: half a surrogate pair and all
        headers = {"content-type": "application/json"}
        return httpx.post(f"{live.url}{path}", content=content, headers=headers, timeout=60)

    return post
