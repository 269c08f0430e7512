"""Options that several commands share, each described once."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _remember_debug(context: typer.Context, value: bool) -> None:
    if value:
        context.ensure_object(dict)["debug"] = True


Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="On an error, show the whole trace. May stand before or after the command.",
        callback=_remember_debug,
        is_eager=True,
    ),
]
"""Read by :func:`octavo.cli.main`, not by the command."""

_MODEL_HELP = "A folder, a .gguf file, a hub id (owner/name), or smollm2: the embedded model, the default."
ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP, show_default=False)]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help=_MODEL_HELP)]

KVMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for the KV cache, such as 512MiB. Default: a share of what is free.",
    ),
]
BlockSize = Annotated[int | None, typer.Option(metavar="N", help="Tokens per block, a multiple of 16.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens of prompt and reply together. Default: what the model and the KV cache allow.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", help="Worker threads. Default: the processors there are."),
]
Isa = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Instruction set to use; octavo info lists them. Default: $OCTAVO_ISA, or the best there is.",
    ),
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="System message that the chat begins with.")]
DEFAULT_MAX_TOKENS = 512
MaxTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=f"Most tokens of a reply. Default: {DEFAULT_MAX_TOKENS}, or what the context leaves if that is less.",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(metavar="T", help="0 always takes the likeliest token."),
]
TopP = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Draw from the likeliest tokens that together reach this probability.",
    ),
]
TopK = Annotated[
    int,
    typer.Option(metavar="K", help="Draw from this many of the likeliest; 0: all."),
]
MinP = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Drop tokens less likely than this share of the likeliest one.",
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(metavar="X", help="Above 1 discourages tokens of prompt and reply."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Make the draws repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def given(**options: Any) -> dict[str, Any]:
    """Those options that were given: what is ``None`` is left to the engine's own defaults."""
    return {name: value for name, value in options.items() if value is not None}
