"""/v1/models, as OpenAI's and as Anthropic's clients read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import ModelInfo
from live_server import LiveServer, live_server
from openai.types import Model

from octavo.async_engine import AsyncEngine
from octavo.server.config import ServerConfig

NAMES = ("smol", "org/smol", "smol:latest", "d", "e")


@pytest.fixture(scope="module")
def server(live: LiveServer) -> Iterator[LiveServer]:
    with live_server(live.engine, ServerConfig(model_names=NAMES)) as named:
        yield named


@pytest.fixture
def openais(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropics(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_openais_client_lists_and_finds_every_name(openais: openai.OpenAI) -> None:
    models = list(openais.models.list())
    assert tuple(model.id for model in models) == NAMES
    for model in models:
        Model.model_validate_json(model.to_json(), strict=True)
        assert openais.models.retrieve(model.id) == model
    assert models[0].max_model_len == 2048  # type: ignore[attr-defined]


def test_anthropics_client_lists_and_finds_every_name(anthropics: anthropic.Anthropic) -> None:
    models = list(anthropics.models.list())
    assert tuple(model.id for model in models) == NAMES
    for model in models:
        ModelInfo.model_validate_json(model.to_json(), strict=True)
        assert anthropics.models.retrieve(model.id) == model
    assert models[0].max_input_tokens == 2048


async def test_the_asynchronous_clients_do_the_same(server: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none") as client:
        assert tuple([model.id async for model in client.models.list()]) == NAMES
        assert (await client.models.retrieve("org/smol")).id == "org/smol"
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as other:
        assert tuple([model.id async for model in other.models.list(limit=2)]) == NAMES
        assert (await other.models.retrieve("org/smol")).id == "org/smol"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_anthropics_pages_join_to_the_whole_in_both_directions(anthropics: anthropic.Anthropic, limit: int) -> None:
    assert tuple(model.id for model in anthropics.models.list(limit=limit)) == NAMES
    backwards: list[str] = []
    before = NAMES[-1]
    while True:
        page = anthropics.models.list(limit=limit, before_id=before)
        backwards = [*(model.id for model in page.data), *backwards]
        assert (page.first_id, page.last_id) == (page.data[0].id, page.data[-1].id)
        if not page.has_more:
            break
        before = page.first_id or ""
    assert tuple(backwards) == NAMES[:-1]


def test_an_empty_page_has_no_ends(anthropics: anthropic.Anthropic) -> None:
    page = anthropics.models.list(after_id=NAMES[-1])
    assert (page.data, page.has_more, page.first_id, page.last_id) == ([], False, None, None)


def test_a_model_that_is_not_served_is_not_found_in_either_dialect(
    openais: openai.OpenAI, anthropics: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.NotFoundError) as openai_error:
        openais.models.retrieve("other")
    assert openai_error.value.code == "model_not_found"
    with pytest.raises(anthropic.NotFoundError) as anthropic_error:
        anthropics.models.retrieve("other")
    body: Any = anthropic_error.value.body
    assert body["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after_id=other", "before_id=other", "after_id=d&before_id=d"]
)
def test_a_page_that_cannot_be_is_refused_by_the_fields_name(server: LiveServer, query: str) -> None:
    response = httpx.get(f"{server.url}/v1/models?{query}", headers={"anthropic-version": "2023-06-01"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert query.split("=")[0].removeprefix("after_id=d&") in error["message"]


def test_a_model_from_a_path_is_called_by_the_last_part_of_it(smollm2_gguf: Path) -> None:
    """Where it lies on this machine is not the clients' to know."""
    engine = AsyncEngine(smollm2_gguf, kv_memory="16MiB")
    try:
        with live_server(engine) as server, openai.OpenAI(base_url=server.openai_url, api_key="none") as client:
            assert [model.id for model in client.models.list()] == [smollm2_gguf.name]
            with pytest.raises(openai.NotFoundError, match=smollm2_gguf.name) as refused:
                client.models.retrieve(str(smollm2_gguf))
            assert str(smollm2_gguf.parent) not in refused.value.message.split("this server has")[1]
    finally:
        engine.shutdown()
