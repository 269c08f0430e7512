"""The project's documents, cut into what a test can check: fenced blocks, links, and names of tests."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "docs/clients/*.md", "benchmarks/*.md")
    for path in sorted(ROOT.glob(pattern))
]

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_TEST = re.compile(r"tests/[\w/]+\.py::\w+")
_PATH = re.compile(r"`((?:src|native|tests|benchmarks)/[\w/.]+\.(?:py|cpp|h))`")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``info`` follows the opening fence, ``line`` is the first line inside it, from 1."""

    document: str
    info: str
    line: int
    text: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip()]

    @property
    def commands(self) -> list[tuple[int, str]]:
        """A shell's commands, each with its first line: one a line, unless a quotation or a backslash leads on.

        Raises:
            ValueError: the last one has no end.
        """
        found: list[tuple[int, str]] = []
        pending: list[str] = []
        for number, line in enumerate(self.text.splitlines(), start=self.line):
            pending.append(line)
            command = "\n".join(pending)
            if _is_whole(command):
                found.append((number - len(pending) + 1, command))
                pending.clear()
        if pending:
            raise ValueError(f"{self.document}: the last command of the block at line {self.line} has no end")
        return found


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # an open quotation, or nothing after a backslash
        return False
    return True


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    """Every fenced block, in order.

    Raises:
        ValueError: the last one is not closed.
    """
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    lines = read(document).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = line[3:].strip(), number + 1
        else:
            info, first = opened
            found.append(Block(document, info, first, "\n".join(lines[first - 1 : number - 1]) + "\n"))
            opened = None
    if opened is not None:
        raise ValueError(f"{document}: the block at line {opened[1]} is not closed")
    return found


def links(document: str) -> list[tuple[str, str]]:
    """(text, target) of every link to a file of ours."""
    found = _LINK.findall(read(document))
    return [(text, target) for text, target in found if "://" not in target and not target.startswith("#")]


def named_files(document: str) -> list[str]:
    """Every source file that is named by its path. ``NAME`` stands for any name."""
    return [path for path in _PATH.findall(read(document)) if "NAME" not in path]


def named_tests(document: str) -> list[str]:
    """Every ``tests/file.py::test`` that is named, and every link to a test whose text is its name."""
    linked = [f"{target}::{text}" for text, target in links(document) if text.startswith("test_")]
    return [*_TEST.findall(read(document)), *linked]
