"""The ``octavo`` command: its subcommands and what they have in common."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo.cli.bench.app import bench
from octavo.cli.cache.app import cache
from octavo.cli.chat import chat
from octavo.cli.demo import demo
from octavo.cli.eval_kv import eval_kv
from octavo.cli.generate import generate
from octavo.cli.info import info
from octavo.cli.key import key
from octavo.cli.options import Debug
from octavo.cli.plan import plan
from octavo.cli.pull import pull
from octavo.cli.serve import serve

app = typer.Typer(
    name="octavo",
    help="Run language models on the CPU through a paged, shared, exact KV cache.",
    epilog="Answers go to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 not understood, "
    "130 interrupted.",
    invoke_without_command=True,
    rich_markup_mode=None,  # plain help: it starts faster and reads well in a pipe
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (chat, generate, serve, key, info, plan, eval_kv, pull, demo):
    app.command()(command)
app.add_typer(cache)
app.add_typer(bench)


def _print_version(wanted: bool) -> None:
    if wanted:
        from octavo import __version__

        print(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def _octavo(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Debug = False,
) -> None:
    """Take the options that stand before the command; their callbacks do the work. No command: show the help."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
