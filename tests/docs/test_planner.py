"""docs/planner.md: its example is what the program prints, and its tables and signatures are those of the code."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from doc_tables import quoted, section, table
from documents import blocks, read

from octavo import cli, planner

PAGE = "docs/planner.md"


def test_the_example_is_what_the_program_prints(smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(smollm2_gguf), "--memory", "1GiB", "--context", "4k"]) == 0
    printed = capsys.readouterr().out.replace(str(smollm2_gguf), "smollm2")
    assert printed in [block.text for block in blocks(PAGE)]


@pytest.mark.parametrize(("owner", "column"), [(planner.Plan, "Plan"), (planner.FormatRow, "FormatRow")])
def test_every_field_is_described_with_its_default(owner: Any, column: str) -> None:
    described = {
        quoted(name)[0]: default.strip("`")
        for name, default, _ in table(PAGE, "## From Python", (column, "Default", "What"))
    }
    defaults = {field.name: field.default for field in dataclasses.fields(owner)}
    assert described == {
        name: "" if default is dataclasses.MISSING else repr(default) for name, default in defaults.items()
    }


@pytest.mark.parametrize("owner", [planner.Plan, planner.FormatRow])
def test_what_is_derived_from_fields_is_described(owner: type) -> None:
    derived = {name for name, member in vars(owner).items() if isinstance(member, property)}
    assert {name for name in derived if f"`{name}`" not in read(PAGE)} == set()


def test_the_signature_is_that_of_the_code() -> None:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(planner.solve).parameters.values()
    ]
    written = " ".join(section(PAGE, "## From Python").split())
    assert f"`solve{inspect.Signature(parameters)}`" in written
