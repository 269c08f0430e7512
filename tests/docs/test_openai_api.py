"""docs/openai-api.md: its tables are those of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from doc_tables import quoted, table
from documents import ROOT
from pydantic import BaseModel, BeforeValidator

from octavo.server.openai import messages
from octavo.server.openai.caching import CachingBody
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.completions_schema import CompletionRequest
from octavo.server.openai.sampling import SamplingBody

PAGE = "docs/openai-api.md"
MODELS = {
    "## Fields of both": SamplingBody,
    "## Chat completions": ChatCompletionRequest,
    "## Completions": CompletionRequest,
    "## Prompt caching": CachingBody,
}


def _own(model: type[BaseModel]) -> list[str]:
    return [name for name in model.__annotations__ if name in model.model_fields]


@pytest.mark.parametrize("heading", MODELS)
def test_every_field_has_its_row_in_order(heading: str) -> None:
    rows = table(PAGE, heading, ("Field", "Status", "What"))
    assert [quoted(name)[0] for name, *_ in rows] == _own(MODELS[heading])
    assert {status for _, status, _ in rows} <= {"works", "no effect", "refused"}


@pytest.mark.parametrize("heading", MODELS)
def test_what_is_refused_is_what_the_model_refuses(heading: str) -> None:
    described = {
        quoted(name)[0] for name, status, _ in table(PAGE, heading, ("Field", "Status", "What")) if status == "refused"
    }
    fields = MODELS[heading].model_fields
    assert described == {name for name in _own(MODELS[heading]) if _is_refused(fields[name])}


def _is_refused(field: Any) -> bool:
    return any(isinstance(item, BeforeValidator) for item in field.metadata)


def test_every_role_has_its_row() -> None:
    union, _ = get_args(messages.Message)
    roles = [get_args(model.model_fields["role"].annotation)[0] for model in get_args(union)]
    assert [quoted(role)[0] for role, _ in table(PAGE, "### Messages", ("Role", "Fields"))] == roles


def test_every_code_is_one_that_the_server_has() -> None:
    source = "".join(path.read_text() for path in (Path(ROOT) / "src/octavo/server").rglob("*.py"))
    codes = [quoted(code)[0] for code, _ in table(PAGE, "## Errors", ("Code", "When"))]
    assert all(f'"{code}"' in source for code in codes)
