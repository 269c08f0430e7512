"""octavo cache pin: keep prefixes on the disk whatever comes."""

from __future__ import annotations

from octavo.cli.cache.options import AdminKey, Folder, Ids
from octavo.cli.options import Debug, Json


def pin(
    ids: Ids, folder: Folder = None, admin_key: AdminKey = None, json_output: Json = False, debug: Debug = False
) -> None:
    """Have prefixes never be evicted or expire."""
    import json

    from octavo.cli.cache.access import folder_of, managed
    from octavo.cli.cache.tables import nothing_in
    from octavo.errors import InvalidRequestError

    path = folder_of(folder)
    with managed(path, admin_key) as management:
        if management is None:
            raise InvalidRequestError(nothing_in(path), param="ids")
        found = management.pin(ids)
    if json_output:
        print(json.dumps(found))
    else:
        print(f"pinned {found['num_blocks']:,} blocks, {found['num_changed']:,} of them for the first time")
