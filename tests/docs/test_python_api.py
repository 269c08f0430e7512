"""docs/python-api.md names everything that is public, with the defaults that the code has."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest
from doc_tables import quoted, section, table
from documents import read

import octavo
from octavo import errors
from octavo.engine.assemble import Assembly, StartupSummary
from octavo.engine.outputs import RequestMetrics
from octavo.engine.stats import EngineGauges, EngineStats

PAGE = "docs/python-api.md"
FIELDS = ("Field", "Default", "What")
DATACLASSES = [
    pytest.param("## `SamplingParams`", octavo.SamplingParams, FIELDS, id="SamplingParams"),
    pytest.param("## `StructuredOutputsParams`", octavo.StructuredOutputsParams, FIELDS, id="StructuredOutputsParams"),
    pytest.param("## `RequestOutput`", octavo.RequestOutput, FIELDS, id="RequestOutput"),
    pytest.param("### `CompletionOutput`", octavo.CompletionOutput, FIELDS, id="CompletionOutput"),
    pytest.param("### `Logprob`", octavo.Logprob, FIELDS, id="Logprob"),
    pytest.param("### `RequestMetrics`", RequestMetrics, FIELDS, id="RequestMetrics"),
    pytest.param("## `EngineConfig`", octavo.EngineConfig, FIELDS, id="EngineConfig"),
    pytest.param("## Summary and statistics", StartupSummary, ("Summary", "Default", "What"), id="StartupSummary"),
    pytest.param("## Summary and statistics", EngineStats, ("Counter", "Default", "What"), id="EngineStats"),
    pytest.param("## Summary and statistics", EngineGauges, ("Gauge", "Default", "What"), id="EngineGauges"),
]
SIGNATURES = [
    pytest.param("## `LLM`", "LLM", octavo.LLM, id="LLM"),
    pytest.param("### Prompts", "generate", octavo.LLM.generate, id="LLM.generate"),
    pytest.param("### Chat", "chat", octavo.LLM.chat, id="LLM.chat"),
    pytest.param("### Streaming", "stream", octavo.LLM.stream, id="LLM.stream"),
    pytest.param("## `AsyncEngine`", "AsyncEngine", octavo.AsyncEngine, id="AsyncEngine"),
    pytest.param("## `AsyncEngine`", "generate", octavo.AsyncEngine.generate, id="AsyncEngine.generate"),
]


def test_every_public_export_is_described() -> None:
    described = {name for row in table(PAGE, "# The Python API", ("Name", "What it is")) for name in quoted(row[0])}
    assert described == set(octavo.__all__)


@pytest.mark.parametrize(("heading", "owner", "columns"), DATACLASSES)
def test_every_field_is_described_with_its_default(heading: str, owner: Any, columns: tuple[str, ...]) -> None:
    described = {quoted(name)[0]: default.strip("`") for name, default, _ in table(PAGE, heading, columns)}
    assert described == {field.name: _default_of(field) for field in dataclasses.fields(owner)}


@pytest.mark.parametrize("owner", [octavo.LLM, octavo.AsyncEngine])
def test_every_public_method_and_property_is_described(owner: type) -> None:
    rows = table(PAGE, f"## `{owner.__name__}`", ("Member", "What"))
    assert {name for row in rows for name in quoted(row[0])} == _public(owner)


@pytest.mark.parametrize(
    "owner", [octavo.RequestOutput, octavo.CompletionOutput, RequestMetrics, octavo.EngineConfig, EngineGauges]
)
def test_what_is_derived_from_fields_is_described(owner: type) -> None:
    fields = {field.name for field in dataclasses.fields(owner)}
    page = read(PAGE)
    assert {name for name in _public(owner) - fields if not re.search(rf"`(\w+\.)?{name}[`(]", page)} == set()


@pytest.mark.parametrize(("heading", "name", "function"), SIGNATURES)
def test_signatures_are_those_of_the_code(heading: str, name: str, function: Any) -> None:
    written = " ".join(section(PAGE, heading).split())
    assert f"`{name}({', '.join(_arguments(function))})`" in written


def test_what_decides_how_a_chat_is_rendered_is_described() -> None:
    described = {
        quoted(row[0])[0]: row[1].strip("`") for row in table(PAGE, "### Chat", ("Argument", "Default", "What"))
    }
    parameters = inspect.signature(Assembly.render).parameters.values()
    assert described == {p.name: repr(p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_every_error_is_described_with_what_it_is() -> None:
    described = {quoted(row[0])[0]: quoted(row[1]) for row in table(PAGE, "## `errors`", ("Error", "Is also", "When"))}
    classes = {n: e for n, e in vars(errors).items() if inspect.isclass(e) and issubclass(e, errors.OctavoError)}
    bases = {n: [b.__name__ for b in e.__bases__ if b is not errors.OctavoError] for n, e in classes.items()}
    assert described == bases


def _default_of(field: Any) -> str:
    """As the page writes it: nothing for a field that must be given."""
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory()).replace("'", '"')
    if field.default is dataclasses.MISSING:
        return ""
    return repr(field.default).replace("'", '"')


def _public(owner: type) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def _arguments(function: Any) -> list[str]:
    """Names and defaults, without annotations and ``self``, as in a call's signature."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    written = str(inspect.Signature(bare)).replace("'", '"')
    return written[1:-1].split(", ")
