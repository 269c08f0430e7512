"""docs/responses-api.md: its tables are those of the code."""

from __future__ import annotations

import inspect
import re
from typing import Any

from doc_tables import quoted, section, table
from pydantic import BaseModel, BeforeValidator

from octavo.server import models
from octavo.server.openai import (
    responses,
    responses_diagnostics,
    responses_items,
    responses_output,
    responses_reply,
)
from octavo.server.openai.responses_schema import InputTokensBody, PromptBody, ResponseBody

PAGE = "docs/responses-api.md"


def rows(heading: str, *columns: str) -> dict[str, list[str]]:
    """The other cells of a table's rows by the first name in their first."""
    return {quoted(row[0])[0]: row[1:] for row in table(PAGE, heading, columns)}


def test_every_field_of_a_request_has_its_row_in_order() -> None:
    described = rows("## The request", "Field", "Status", "What")
    shared = [*PromptBody.model_fields, "model"]
    assert shared == list(InputTokensBody.model_fields)
    assert list(described) == [*shared, *(name for name in ResponseBody.model_fields if name not in shared)]
    assert {status for status, _ in described.values()} == {"works", "no effect", "refused"}


def test_what_is_refused_is_what_the_model_refuses() -> None:
    described = rows("## The request", "Field", "Status", "What")
    refused = {name for name, field in ResponseBody.model_fields.items() if _is_refused(field)}
    assert {name for name, (status, _) in described.items() if status == "refused"} == refused


def _is_refused(field: Any) -> bool:
    return field.annotation is type(None) and any(isinstance(item, BeforeValidator) for item in field.metadata)


def test_every_type_of_item_has_its_row() -> None:
    described = rows("## Items", "Type", "Status", "What the model is shown")
    assert tuple(described) == responses_items._TYPES


def test_every_type_of_output_has_its_row() -> None:
    written = re.findall(r'"type": "(message|reasoning|function_call)"', inspect.getsource(responses_output))
    assert set(rows("## The response", "Type", "When")) == set(written)


def test_every_diagnosis_has_its_row() -> None:
    source = inspect.getsource(responses_diagnostics)
    types = set(re.findall(r'"(unavailable|cache_\w+|comparison_response_\w+)"', source)) - {"cache_missed_tokens"}
    assert set(rows("## Prompt caching", "Type", "When")) == types
    reasons = set(re.findall(r'"(\w+_changed)"', source))
    assert set(rows("## Prompt caching", "Reason", "What changed first")) == reasons


def test_every_event_has_its_row() -> None:
    source = inspect.getsource(responses_output) + inspect.getsource(responses_reply)
    told = {name for name in re.findall(r'"(response\.[a-z_.]+|error)"', source) if name not in _KINDS}
    told |= {f"{kind}.{end}" for kind in _KINDS for end in ("delta", "done")}
    told |= {"response.completed", "response.incomplete"}
    described = {name for row in table(PAGE, "## Events", ("Event", "When")) for name in quoted(row[0])}
    assert described == told


_KINDS = {"response.output_text", "response.reasoning_text"}


def test_every_endpoint_has_its_row() -> None:
    served = {
        f"{method} {route.path_format}"
        for router in (responses.router, models.router)
        for route in router.routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    described = {name for row in table(PAGE, "# Responses and models", ("Endpoint", "What")) for name in quoted(row[0])}
    assert described == served


def test_every_field_of_a_query_is_named() -> None:
    text = " ".join(" ".join(row) for row in table(PAGE, "# Responses and models", ("Endpoint", "What")))
    page = text + section(PAGE, "## Models")
    queries: list[type[BaseModel]] = [responses.ItemsQuery, models.ModelsQuery]
    for query in queries:
        for name in query.model_fields:
            assert f"`{name}`" in page
