"""docs/explain.md: its tables are what the code says."""

from __future__ import annotations

from typing import get_args

import httpx
from doc_tables import quoted, table
from live_server import LiveServer, served_model

from octavo.server.cache_explain import ExplainBody
from octavo.server.prompt_cache.explain import CauseKind

PAGE = "docs/explain.md"


def _first(heading: str, column: str) -> list[str]:
    return [quoted(name)[0] for name, *_ in table(PAGE, heading, (column, "What"))]


def test_every_field_of_the_question_has_its_row() -> None:
    assert _first("## The question", "Field") == list(ExplainBody.model_fields)


def test_every_cause_has_its_row_in_order() -> None:
    assert _first("## Causes", "Type") == list(get_args(CauseKind))


def test_every_field_of_the_answer_has_its_row_in_order() -> None:
    with served_model("smollm2", kv_memory="64MiB") as live:
        assert _first("## The answer", "Field") == _answer(live)


def _answer(live: LiveServer) -> list[str]:
    body = {"endpoint": "/v1/completions", "request": {"model": live.model, "prompt": "A river"}}
    return list(httpx.post(f"{live.url}/v1/cache/explain", json=body).json())
