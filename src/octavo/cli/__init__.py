"""The command line. One file per command; this one turns every ending into an exit status and, at most, one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``octavo`` with these arguments (``None``: the process's own) and return its exit status.

    0: done. 1: something failed, and one line on stderr says what; ``--debug`` shows the trace instead. 2: the
    command was not understood. 130: interrupted by Ctrl-C. Whoever reads our output may stop: that ends the
    command quietly with 1.
    """
    if sys.stdout is None:
        return _fail("standard output is closed, and answers go there")
    _repair_streams()
    import typer

    from octavo.cli.app import app
    from octavo.errors import OctavoError

    # typer carries its own click since 0.25 and exports only this one of the usage errors.
    usage_error: type[BaseException] = typer.BadParameter.__mro__[1]
    told: dict[str, bool] = {}
    try:
        command = typer.main.get_command(app)
        status = command.main(args=arguments, prog_name="octavo", standalone_mode=False, obj=told)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except usage_error as error:
        return _fail(f"{_message_of(error)} (see: {_help_for(error)})", status=2)
    except OctavoError as error:
        return _fail(str(error), trace=told.get("debug", False))
    except Exception as error:
        hint = "" if told.get("debug") else " (--debug shows the trace)"
        return _fail(f"unexpected {type(error).__name__}: {error}{hint}", trace=told.get("debug", False))
    if status == _INTERRUPTED:  # what typer makes of Ctrl-C in a command
        return _interrupted()
    return status if isinstance(status, int) else 0


def _interrupted() -> int:
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the shell's prompt shall not stand behind the ^C
    return _INTERRUPTED


def _repair_streams() -> None:
    """Let a closed stdin be empty and a closed stderr be nobody, and no character be one too many for stdout.

    Where ``sys.stderr`` is None, ``print`` would write to stdout instead.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - for as long as the process runs
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _fail(message: str, *, status: int = 1, trace: bool = False) -> int:
    if trace:
        import traceback

        traceback.print_exc()
    print("octavo: error:", " ".join(message.split()), file=sys.stderr)
    return status


def _message_of(usage_error: BaseException) -> str:
    text: str = usage_error.format_message()  # type: ignore[attr-defined]
    return text.rstrip(".")


def _help_for(usage_error: BaseException) -> str:
    context = getattr(usage_error, "ctx", None)
    return f"{context.command_path if context else 'octavo'} --help"
