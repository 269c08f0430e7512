"""The OpenAPI document is valid and lists every endpoint, and no request that follows it, or nearly does, is answered
with an error of the server's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, served_model
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.openapi import from_url
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

EXAMPLES = 300 if os.environ.get("OCTAVO_SOAK") else 20
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
WITH_A_BODY = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/caches",
    "/v1/cache/explain",
    "/admin/disk/clear",
    "/admin/disk/pin",
    "/admin/disk/unpin",
    "/admin/disk/warm",
)
OTHERS = (
    ("get", "/v1/responses/{response_id}"),
    ("delete", "/v1/responses/{response_id}"),
    ("get", "/v1/responses/{response_id}/input_items"),
    ("get", "/v1/cache/usage"),
    ("get", "/v1/caches"),
    ("get", "/v1/caches/{cache_id}"),
    ("patch", "/v1/caches/{cache_id}"),
    ("delete", "/v1/caches/{cache_id}"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model}"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/version"),
    ("get", "/metrics"),
    ("get", "/admin/stats"),
    ("post", "/admin/cache/flush"),
    ("get", "/admin/disk"),
    ("get", "/admin/disk/prefixes"),
    ("post", "/admin/disk/verify"),
)


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[LiveServer]:
    """With little room, so that whatever is asked for ends soon."""
    with served_model(smollm2_gguf, kv_memory="32MiB", max_model_len=128, max_num_seqs=16) as live:
        yield live


@pytest.fixture(scope="module")
def document(server: LiveServer) -> Any:
    return from_url(f"{server.url}/openapi.json")


def test_the_document_is_valid_and_lists_every_endpoint(document: Any) -> None:
    document.validate()
    listed = {(operation.ok().method, operation.ok().path) for operation in document.get_all_operations()}
    assert listed == {*(("post", path) for path in WITH_A_BODY), *OTHERS}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", WITH_A_BODY)
def test_no_body_makes_the_server_fail(server: LiveServer, document: Any, path: str, mode: GenerationMode) -> None:
    """Bodies after the schema, and bodies that break it; half of them ask for the model that is there."""

    @settings(max_examples=EXAMPLES, deadline=None, phases=(Phase.generate,), derandomize=EXAMPLES < 100)
    @given(case=document[path]["post"].as_strategy(generation_mode=mode), names_the_model=st.booleans())
    def check(case: schemathesis.Case, names_the_model: bool) -> None:
        if names_the_model and isinstance(case.body, dict):
            case.body["model"] = server.model
            for name in {"n", "best_of"} & case.body.keys():  # hundreds of answers are right, but take their time
                case.body[name] = min(case.body[name], 4) if type(case.body[name]) is int else case.body[name]
        case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)

    check()
    server.until_idle()


@pytest.mark.parametrize(("method", "path"), OTHERS)
def test_no_parameter_makes_the_server_fail(server: LiveServer, document: Any, method: str, path: str) -> None:
    @settings(max_examples=EXAMPLES if "{" in path else 2, deadline=None, phases=(Phase.generate,))
    @given(case=document[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    check()


def test_after_all_that_the_server_is_healthy(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.until_idle()
    server.check_idle()
