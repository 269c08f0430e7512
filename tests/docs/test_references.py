"""What the documents point at exists: files, tests by name, and every file of the house."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from documents import DOCUMENTS, ROOT, blocks, links, named_files, named_tests, read

SOURCES = ("src/octavo", "native")


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes and other names that a module defines at its top or in its classes."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    assigned = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    return frozenset([*defined, *assigned])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file(document: str) -> None:
    targets = {target.split("#")[0] for _, target in links(document)}
    here = (ROOT / document).parent
    assert {target for target in targets if not (here / target).exists()} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_source_file_that_is_named_exists(document: str) -> None:
    assert {path for path in named_files(document) if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_is_named_exists(document: str) -> None:
    missing = set()
    for name in named_tests(document):
        path, _, function = name.partition("::")
        if not (ROOT / path).is_file() or function not in names_in(path):
            missing.add(name)
    assert missing == set()


def test_every_rule_of_the_architecture_has_a_test() -> None:
    """A row of a table with the heading "Test" names at least one."""
    text = read("ARCHITECTURE.md")
    tables = re.findall(r"^\|[^\n]*\| Test[^\n]*\|\n\|[-| ]+\|\n((?:\|[^\n]*\n)+)", text, re.M)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"tests/[\w/]+\.py::\w+", row)] == []


def test_the_house_lists_every_file_and_no_other() -> None:
    """The blocks of ARCHITECTURE.md that begin with a folder list its files, one a line, indented by their depth."""
    listed = {path for block in blocks("ARCHITECTURE.md") if block.info == "text" for path in files_of(block.text)}
    there = {
        path.relative_to(ROOT).as_posix()
        for source in SOURCES
        for path in (ROOT / source).rglob("*")
        if path.suffix in (".py", ".pyi", ".cpp", ".h") and path.name != "__init__.py"
    }
    assert listed == there


def files_of(text: str) -> list[str]:
    """Paths of a drawn tree whose first line is one of ``SOURCES``: two spaces a level, then what it is."""
    lines = text.splitlines()
    if lines[0].split()[0].rstrip("/") not in SOURCES:
        return []
    folders, files = [lines[0].split()[0].rstrip("/")], []
    for line in lines[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.match(r"\s*([\w./]+(?:, [\w./]+)*)", line)[1].split(", "):  # type: ignore[index]
            if name.endswith("/"):
                folders[depth:] = [name.rstrip("/")]
            else:
                files.append("/".join([*folders[:depth], name]))
    return files
