"""A link to a heading leads to one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT

_TARGET = re.compile(r"\]\(([^)\s:]*)#([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_to_a_heading_leads_to_one(document: str) -> None:
    here = ROOT / document
    links = [(here.parent / file if file else here, anchor) for file, anchor in _TARGET.findall(_text(here))]
    assert [f"{path.name}#{anchor}" for path, anchor in links if anchor not in _anchors(path)] == []


def _anchors(path: Path) -> set[str]:
    """Of a document's headings, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", _text(path)), re.M)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
