"""Options that several commands share, each described once."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from pathlib import Path
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
KVDtype = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="How keys and values are stored: bf16 (the default), int8, fp8, int4 (keys in 8 bits), int4-full, or keys "
        "and values apart, such as int8:fp8.",
    ),
]


_MAX_DISK_BYTES = 20 * 2**30


class Layers(tuple[int, ...]):
    """Numbers of layers, as an option gives them."""


def _read_layers(text: str) -> Layers:
    """``"0,1,28-29"``: numbers and ranges, both ends included."""
    layers: list[int] = []
    for part in text.split(","):
        match = _LAYERS.fullmatch(part.strip())
        if match is None or int(match.group(2) or match.group(1)) < int(match.group(1)):
            raise typer.BadParameter(f"cannot read {text!r} as layers; write numbers and ranges, such as 0,1,28-29")
        layers += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return Layers(layers)


_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
KV8BitLayers = Annotated[
    Layers | None,
    typer.Option(
        "--kv-8bit-layers",
        metavar="LAYERS",
        parser=_read_layers,
        help="Layers that keep 8 bits where the format has 4, such as 0,1,28-29.",
    ),
]
NoKVQualityGate = Annotated[
    bool,
    typer.Option(
        "--no-kv-quality-gate",
        help="Take a format with 4-bit keys although octavo eval-kv has not passed it for this model.",
    ),
]
KVDisk = Annotated[
    str | None,
    typer.Option(
        "--kv-disk",
        metavar="DIR",
        help="Folder in which computed keys and values outlive the process. Default: kv in Octavo's cache folder.",
    ),
]
KVDiskLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most bytes of it. Default: 20GiB, or half of what is free there if less."),
]
KVDiskTtl = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Time after which what nobody used there is forgotten. Default: never."),
]
NoDisk = Annotated[bool, typer.Option("--no-disk", help="Keep nothing on the disk.")]
BlockSize = Annotated[int | None, typer.Option(metavar="N", help="Tokens per block, a multiple of 16.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens of prompt and reply together. Default: what the model and the KV cache allow.",
    ),
]
MaxNumSeqs = Annotated[int | None, typer.Option(metavar="N", help="Most sequences that run at once. Default: 64.")]
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


def kv_format(kv_dtype: str | None, kv_8bit_layers: Layers | None, no_kv_quality_gate: bool = False) -> dict[str, Any]:
    """The engine's settings that the options of a KV format stand for; ``None`` where one is not given."""
    return {
        "kv_dtype": kv_dtype,
        "kv_8bit_layers": kv_8bit_layers,
        "kv_quality_gate": False if no_kv_quality_gate else None,
    }


def kv_disk(folder: str | None, limit: str | None, ttl: float | None, no_disk: bool) -> dict[str, Any]:
    """The engine's settings that the options of the disk tier stand for. It is had without asking; then a folder that
    cannot be used is said on stderr, and is no reason to refuse the start.

    Raises:
        ConfigError: ``--no-disk`` stands beside an option of the disk tier.
    """
    from octavo.config import default_kv_disk
    from octavo.errors import ConfigError

    if no_disk:
        if (folder, limit, ttl) != (None, None, None):
            raise ConfigError("--no-disk keeps nothing on the disk; leave the other options of --kv-disk out")
        return {}
    path = default_kv_disk() if folder is None else Path(folder)
    if folder is None:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            print(f"octavo: nothing is kept on the disk: {str(path)!r}: {error.strerror}", file=sys.stderr)
            return {}
    return {"kv_disk": path, "kv_disk_limit": _default_limit(path) if limit is None else limit, "kv_disk_ttl": ttl}


def _default_limit(folder: Path) -> int:
    """20 GiB, or half of what would be free if nothing of it were there."""
    try:
        held = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except OSError:
        return _MAX_DISK_BYTES  # what is wrong with the folder is said where it is opened
    return min(_MAX_DISK_BYTES, (held + free) // 2)


def given(**options: Any) -> dict[str, Any]:
    """Those options that were given: what is ``None`` is left to the engine's own defaults."""
    return {name: value for name, value in options.items() if value is not None}
