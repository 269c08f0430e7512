"""docs/cli.md has every command, argument and option of the program, with its default, and no other."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from doc_tables import quoted, section, table

from octavo.cli.app import app

PAGE = "docs/cli.md"
COLUMNS = ("Option", "Default", "What")


def _commands(command: Any, name: str) -> dict[str, Any]:
    """Every command that does something, by the words one types: ``octavo`` itself, and the leaves below it."""
    below = {
        words: leaf
        for part, child in getattr(command, "commands", {}).items()
        for words, leaf in _commands(child, f"{name} {part}").items()
    }
    return {name: command, **below} if not below or name == "octavo" else below


COMMANDS = _commands(typer.main.get_command(app), "octavo")


def test_every_command_is_listed() -> None:
    rows = table(PAGE, "# The command line", ("Command", "What"))
    assert [quoted(row[0])[0] for row in rows] == [words for words in COMMANDS if words != "octavo"]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_is_described_with_its_default(words: str) -> None:
    described = {" ".join(quoted(row[0])): row[1] for row in table(PAGE, f"## `{words}`", COLUMNS)}
    described.pop("--help -h", None)  # every command has it; it is no option of any
    parameters = {_as_written(parameter): parameter for parameter in COMMANDS[words].params}
    assert set(described) == set(parameters)
    wrong = {name: cell for name, cell in described.items() if not _says(cell, parameters[name])}
    assert wrong == {}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_says_what_it_is_for(words: str) -> None:
    text = section(PAGE, f"## `{words}`")
    assert [line for line in text.splitlines() if line and line[0] not in "|`"]


def _as_written(parameter: Any) -> str:
    """``--max-tokens N``, ``--model MODEL -m``, ``--chat --raw``, ``PROMPT``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    first, *others = [*parameter.opts, *parameter.secondary_opts]
    return " ".join([first if parameter.is_flag else f"{first} {parameter.metavar}", *others])


def _says(cell: str, parameter: Any) -> bool:
    """Whether a cell says the default. What the code leaves open (``None``) is said in words."""
    if parameter.default is None:
        return bool(cell)
    if parameter.param_type_name == "option" and parameter.is_flag:
        return cell == (f"`{parameter.opts[0]}`" if parameter.secondary_opts else "off")
    return cell == f"`{parameter.default}`"
