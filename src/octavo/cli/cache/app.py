"""``octavo cache``: its sub-commands."""

from __future__ import annotations

import sys

import typer

from octavo.cli.cache.clear import clear
from octavo.cli.cache.ls import ls
from octavo.cli.cache.pin import pin
from octavo.cli.cache.stat import stat
from octavo.cli.cache.unpin import unpin
from octavo.cli.cache.verify import verify
from octavo.cli.cache.warm import warm
from octavo.cli.options import Debug

cache = typer.Typer(
    name="cache",
    help="See and manage what is kept on the disk.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
for command in (ls, stat, verify, clear, pin, unpin, warm):
    cache.command()(command)


@cache.callback()
def _cache(context: typer.Context, debug: Debug = False) -> None:
    """Without a sub-command: show the help, as ``octavo`` does."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
