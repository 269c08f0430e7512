from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import LiveServer
from openai import AsyncOpenAI, OpenAI

from octavo.llm import LLM


@pytest.fixture
def client(live: LiveServer) -> Iterator[OpenAI]:
    """The SDK on the shared server; nothing may be left running."""
    with OpenAI(base_url=live.openai_url, api_key="none", max_retries=0, timeout=60) as openai_client:
        yield openai_client
    live.until_idle()


@pytest.fixture
async def async_client(live: LiveServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=live.openai_url, api_key="none", max_retries=0, timeout=60) as openai_client:
        yield openai_client


@pytest.fixture
def ask(client: OpenAI, live: LiveServer) -> Any:
    """Chat completions of the served model; greedy unless told otherwise."""

    def create(messages: Any, **fields: Any) -> Any:
        settings = {"temperature": 0, "max_completion_tokens": 24, **fields}
        return client.chat.completions.create(model=live.model, messages=messages, **settings)

    return create


@pytest.fixture
def complete(client: OpenAI, live: LiveServer) -> Any:
    """Completions of the served model; greedy unless told otherwise."""

    def create(prompt: Any, **fields: Any) -> Any:
        return client.completions.create(model=live.model, prompt=prompt, **{"temperature": 0, **fields})

    return create


@pytest.fixture(scope="session")
def llm(smollm2_gguf: Path) -> Iterator[LLM]:
    """The same model in this process, without a server."""
    with LLM(smollm2_gguf, kv_memory="64MiB", max_model_len=2048, threads=2) as model:
        yield model
