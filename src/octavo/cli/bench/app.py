"""``octavo bench``: its sub-commands."""

from __future__ import annotations

import sys

import typer

from octavo.cli.bench.cache import cache
from octavo.cli.bench.disk import disk
from octavo.cli.bench.paging import paging
from octavo.cli.bench.prefix import prefix
from octavo.cli.bench.throughput import throughput
from octavo.cli.options import Debug

bench = typer.Typer(
    name="bench",
    help="Measure what the KV cache saves and how fast the engine is.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
for command in (cache, prefix, disk, paging, throughput):
    bench.command()(command)


@bench.callback()
def _bench(context: typer.Context, debug: Debug = False) -> None:
    """Without a sub-command: show the help, as ``octavo`` does."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
