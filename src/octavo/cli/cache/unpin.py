"""octavo cache unpin: have prefixes on the disk go as others do."""

from __future__ import annotations

from octavo.cli.cache.options import AdminKey, Folder, Ids
from octavo.cli.options import Debug, Json


def unpin(
    ids: Ids, folder: Folder = None, admin_key: AdminKey = None, json_output: Json = False, debug: Debug = False
) -> None:
    """Have prefixes be evicted and expire as others do.

    What another pinned prefix begins with stays pinned; a pinned prefix that one of these goes on with does not.
    """
    import json

    from octavo.cli.cache.access import folder_of, managed
    from octavo.cli.cache.tables import nothing_in
    from octavo.errors import InvalidRequestError

    path = folder_of(folder)
    with managed(path, admin_key) as management:
        if management is None:
            raise InvalidRequestError(nothing_in(path), param="ids")
        found = management.unpin(ids)
    if json_output:
        print(json.dumps(found))
    else:
        print(f"unpinned {found['num_changed']:,} blocks")
