"""octavo cache stat: how much is kept on the disk, and whose it is."""

from __future__ import annotations

from typing import Any

from octavo.cli.cache.options import AdminKey, Folder
from octavo.cli.options import Debug, Json


def stat(folder: Folder = None, admin_key: AdminKey = None, json_output: Json = False, debug: Debug = False) -> None:
    """Show how much is stored, by model and by tenant."""
    import json

    from octavo.cli.cache.access import folder_of, managed
    from octavo.cli.cache.tables import nothing_in

    path = folder_of(folder)
    with managed(path, admin_key) as management:
        found = _NOTHING | {"folder": str(path)} if management is None else management.usage()
    if json_output:
        print(json.dumps(found))
    elif management is None:
        print(nothing_in(path))
    else:
        _show(found)


_NOTHING: dict[str, Any] = {
    "folder": "",
    "num_file_bytes": 0,
    "limit": None,
    "num_blocks": 0,
    "num_bytes": 0,
    "num_pinned": 0,
    "oldest_use": None,
    "newest_use": None,
    "models": [],
    "tenants": [],
}


def _show(found: dict[str, Any]) -> None:
    from octavo.cli.cache.tables import ago, blocks_of, print_table, size, tenant_of

    limit = "" if found["limit"] is None else f" of at most {size(found['limit'])}"
    print(f"{found['folder']}: files of {size(found['num_file_bytes'])}{limit}")
    pinned = f", {found['num_pinned']:,} of them pinned" if found["num_pinned"] else ""
    print(f"{blocks_of(found)}{pinned}; last used between {ago(found['oldest_use'])} and {ago(found['newest_use'])}")
    for name, parts in (("model", found["models"]), ("tenant", found["tenants"])):
        rows = [
            (
                part["label"] if name == "model" else tenant_of(part["tenant"]),
                f"{part['num_blocks']:,}",
                size(part["num_bytes"]),
                f"{part['num_pinned']:,}",
                ago(part["newest_use"]),
            )
            for part in parts
        ]
        print_table((name, "blocks", "size", "pinned", "used"), rows, left=1)
