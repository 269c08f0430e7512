"""octavo cache ls: what is kept on the disk, as beginnings of prompts."""

from __future__ import annotations

from typing import Any

from octavo.cli.cache.options import AdminKey, Folder, StoredModel, Tenant
from octavo.cli.options import Debug, Json


def ls(
    folder: Folder = None,
    tenant: Tenant = None,
    model: StoredModel = None,
    admin_key: AdminKey = None,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """List the stored prefixes, the one first that was used last.

    Each is a chain of blocks from a prompt's beginning. What several share is stored once, and counts once in the sum.
    """
    import json

    from octavo.cli.cache.access import folder_of, managed
    from octavo.cli.cache.tables import nothing_in

    path = folder_of(folder)
    with managed(path, admin_key) as management:
        found: dict[str, Any] = {"folder": str(path), "prefixes": [], "num_blocks": 0, "num_bytes": 0, "num_pinned": 0}
        if management is not None:
            found = management.list_prefixes(tenant, model)
    if json_output:
        print(json.dumps(found))
    elif not found["prefixes"]:
        chosen = tenant is not None or model is not None
        print(f"nothing of that is kept in {path}" if chosen else nothing_in(path))
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from octavo.cli.cache.tables import ago, blocks_of, print_table, size, tenant_of

    columns = ("id", "model", "tenant", "", "tokens", "blocks", "size", "of it shared", "used")
    rows = [
        (
            prefix["id"],
            prefix["label"],
            tenant_of(prefix["tenant"]),
            ", ".join(_remarks(prefix)),
            f"{prefix['num_tokens']:,}",
            f"{prefix['num_blocks']:,}",
            size(prefix["num_bytes"]),
            size(prefix["num_shared_bytes"]) if prefix["num_shared_bytes"] else "-",
            ago(prefix["used"]),
        )
        for prefix in found["prefixes"]
    ]
    print_table(columns, rows, left=4)
    one = len(rows) == 1
    print(f"{len(rows):,} prefix{'' if one else 'es'} in {blocks_of(found)}, {found['folder']}")


def _remarks(prefix: dict[str, Any]) -> list[str]:
    return [*(["pinned"] if prefix["is_pinned"] else []), *([] if prefix["is_whole"] else ["beginning lost"])]
