"""Options that the sub-commands of ``octavo cache`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path | None,
    typer.Option(
        "--kv-disk",
        metavar="DIR",
        help="Folder of the disk tier. Default: kv in Octavo's cache folder, as octavo serve and chat have it.",
    ),
]
AdminKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", help="An administrator's API key, if a server has the folder. Default: $OCTAVO_ADMIN_KEY."
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Only what this tenant's prompts left: its name; alice,bob or * of those that share a cache; '' where "
        "there were no keys; sha256:HEX of what stat shows. Default: all.",
    ),
]
StoredModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="LABEL",
        help="Only of this model, by its label or the label's first words. Default: all.",
    ),
]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids of prefixes, as octavo cache ls has them, or their beginnings."),
]
