"""docs/tools.md: its formats are those of the code, and its example prints what it says."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from doc_tables import quoted, table
from documents import blocks

from octavo.text.tools.detect import FORMATS

PAGE = "docs/tools.md"


def test_every_format_is_listed() -> None:
    rows = table(PAGE, "## Formats of calls", ("Format", "Models", "What a call looks like"))
    assert {quoted(name)[0] for name, *_ in rows} == {tool_format.name for tool_format in FORMATS}


def test_the_documented_rendering_is_what_is_rendered(smollm2_gguf: Path) -> None:
    example = next(block for block in blocks(PAGE) if block.info == "python")
    shown = next(block for block in blocks(PAGE) if block.info == "text")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.text, PAGE, "exec"), {"__name__": "__main__"})
    assert printed.getvalue().rstrip("\n") == shown.text.rstrip("\n")
