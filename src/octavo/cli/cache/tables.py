"""How ``octavo cache`` shows sizes, times and rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
_NO_TENANT = "0" * 64
_WIDTH = 160


def size(num_bytes: int) -> str:
    """``"1.50 GiB"``; below one, in MiB."""
    return f"{num_bytes / 2**30:,.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.1f} MiB"


def ago(when: float | None) -> str:
    """``"5 min ago"`` of seconds since 1970."""
    if when is None:
        return "-"
    seconds = max(0.0, time.time() - when)
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds // length:,.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def tenant_of(digest: str) -> str:
    """What is shown of a tenant: nobody can tell its name from that."""
    return "-" if digest == _NO_TENANT else f"sha256:{digest[:12]}"


def blocks_of(found: dict[str, int]) -> str:
    """``"12 blocks (4.3 MiB)"``."""
    return f"{found['num_blocks']:,} block{'' if found['num_blocks'] == 1 else 's'} ({size(found['num_bytes'])})"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> None:
    """Rows under their columns; the first ``left`` stand on the left, numbers on the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False) if sys.stdout.isatty() else Console(width=_WIDTH, markup=False)
    console.print(table, highlight=False)


def nothing_in(folder: Path) -> str:
    return f"nothing is kept in {folder}"
