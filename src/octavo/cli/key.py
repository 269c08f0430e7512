"""octavo key: a new API key for a tenant of octavo serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import Debug


def key(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key it is; a tenant may have several.")],
    admin: Annotated[bool, typer.Option("--admin", help="Let it use /admin and /metrics.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for octavo serve --api-key-file, which gets a line more."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Make an API key for octavo serve.

    The key is printed this once, on stdout; what is kept is its SHA-256.
    """
    from octavo.server.keys import Key, append_key, check_tenant, new_key

    text = new_key()
    made = Key.of(text, check_tenant(tenant), admin)
    if file is None:
        print(f"octavo: the line for octavo serve --api-key-file: {made.line}", file=sys.stderr)
    else:
        append_key(file, made)
    print(text)
