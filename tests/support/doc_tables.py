"""Tables of a document, found by the heading they stand under, for tests that compare them with the code."""

from __future__ import annotations

import re

from documents import read

_CELL_BORDER = re.compile(r"(?<!\\)\|")
_QUOTED = re.compile(r"`([^`]+)`")


def section(document: str, heading: str) -> str:
    """What stands under ``heading`` (``"## The title"``), up to the next heading of any level.

    Raises:
        KeyError: there is no such heading.
    """
    found: list[str] | None = None
    fenced = False
    for line in read(document).splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            if found is not None:
                break
            if line == heading:
                found = []
        elif found is not None:
            found.append(line)
    if found is None:
        raise KeyError(f"{document} has no heading {heading!r}")
    return "\n".join(found)


def table(document: str, heading: str, columns: tuple[str, ...]) -> list[list[str]]:
    """The rows of the one table under ``heading`` that has these columns, as lists of cells.

    Raises:
        KeyError: there is no such heading, or not one such table under it.
    """
    tables: list[list[list[str]]] = [[]]
    for line in section(document, heading).splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip() for cell in _CELL_BORDER.split(line)[1:-1]])
        elif tables[-1]:
            tables.append([])
    matching = [rows[2:] for rows in tables if rows and tuple(rows[0]) == columns]
    if len(matching) != 1:
        raise KeyError(f"{document}, {heading!r}: {len(matching)} tables with the columns {columns}")
    return matching[0]


def quoted(cell: str) -> list[str]:
    """What a cell holds in backticks."""
    return _QUOTED.findall(cell)
