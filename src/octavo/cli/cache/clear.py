"""octavo cache clear: forget what is kept on the disk, or some of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.cache.options import AdminKey, Folder, StoredModel, Tenant
from octavo.cli.options import Debug, Json
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def clear(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID...", help="Ids of prefixes, or their beginnings. Default: everything."),
    ] = None,
    folder: Folder = None,
    tenant: Tenant = None,
    model: StoredModel = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    admin_key: AdminKey = None,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Forget what is stored, pinned or not, and overwrite it.

    Everything, or what is chosen. Of prefixes goes what no others begin with. What a running server has in memory
    stays there.
    """
    import json

    from octavo.cli.cache.access import folder_of, managed
    from octavo.cli.cache.tables import blocks_of

    path, chosen = folder_of(folder), ids or []
    with managed(path, admin_key) as management:
        found = {"num_blocks": 0, "num_bytes": 0, "num_pinned": 0}
        if management is not None:
            found = management.clear(chosen, tenant, model, dry_run=True)
        if management is not None and found["num_blocks"]:
            if not yes:
                _ask(found, path)
            found = management.clear(chosen, tenant, model)
    if json_output:
        print(json.dumps(found))
    else:
        print(f"forgot {blocks_of(found)} in {path}")


def _ask(found: dict[str, int], path: Path) -> None:
    """Raises ConfigError: nobody is there to be asked. Exit: the answer is no."""
    from octavo.cli.cache.tables import blocks_of

    if not sys.stdin.isatty():
        raise ConfigError(f"{blocks_of(found)} in {str(path)!r} would go; say so with --yes")
    pinned = f", {found['num_pinned']:,} of them pinned" if found["num_pinned"] else ""
    if not typer.confirm(f"Forget {blocks_of(found)}{pinned} in {path}?", err=True):
        print("octavo: nothing was forgotten", file=sys.stderr)
        raise typer.Exit(1)
