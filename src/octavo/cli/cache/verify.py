"""octavo cache verify: every block on the disk, read and proved."""

from __future__ import annotations

from typing import Any

import typer

from octavo.cli.cache.options import AdminKey, Folder
from octavo.cli.options import Debug, Json

_NOTHING = {"num_ok": 0, "num_damaged": 0, "num_foreign": 0, "num_unreadable": 0, "num_bytes": 0, "seconds": 0.0}


def verify(folder: Folder = None, admin_key: AdminKey = None, json_output: Json = False, debug: Debug = False) -> None:
    """Read everything that is stored, and drop what is damaged.

    The exit status is 1 if something was, or could not be read.
    """
    import json

    from octavo.cli.cache.access import folder_of, managed
    from octavo.cli.cache.tables import nothing_in
    from octavo.cli.progress import byte_progress

    path = folder_of(folder)
    with managed(path, admin_key) as management:
        found: dict[str, Any] = _NOTHING
        if management is not None:
            with byte_progress("verifying") as report:
                found = management.verify(report)
    if json_output:
        print(json.dumps(found))
    elif management is None:
        print(nothing_in(path))
    else:
        print(_in_words(found))
    if found["num_damaged"] or found["num_unreadable"]:
        raise typer.Exit(1)


def _in_words(found: dict[str, Any]) -> str:
    from octavo.cli.cache.tables import size

    others = [
        f"{found[name]:,} {words}"
        for name, words in (
            ("num_damaged", "were damaged and are gone: they will be computed again"),
            ("num_unreadable", "could not be read and stay"),
            ("num_foreign", "are of another version of Octavo and stay"),
        )
        if found[name]
    ]
    speed = size(int(found["num_bytes"] / found["seconds"])) if found["seconds"] else size(0)
    read = f"{size(found['num_bytes'])} read in {found['seconds']:.1f} s, {speed} a second"
    return "; ".join([f"{found['num_ok']:,} blocks are as they were stored", *others]) + f" ({read})"
