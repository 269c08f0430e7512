"""octavo cache warm: compute the beginnings of prompts before anybody asks, and keep them on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.cache.options import AdminKey, Folder
from octavo.cli.options import (
    BlockSize,
    Debug,
    Isa,
    Json,
    KV8BitLayers,
    KVDiskLimit,
    KVDtype,
    KVMemory,
    MaxModelLen,
    ModelArgument,
    NoKVQualityGate,
    Threads,
    given,
    kv_disk,
    kv_format,
)
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.cli.cache.remote import RemoteFolder
    from octavo.server.warming import WarmLine


def warm(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help='JSON Lines: {"prompt": TEXT} or {"messages": [...], "tools": [...]} each.'
        ),
    ],
    model: ModelArgument = None,
    folder: Folder = None,
    kv_disk_limit: KVDiskLimit = None,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    block_size: BlockSize = None,
    max_model_len: MaxModelLen = None,
    threads: Threads = None,
    isa: Isa = None,
    admin_key: AdminKey = None,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Compute prompts' beginnings and keep them on the disk.

    What is there is loaded and proved, and not computed again. Where a server has the folder, that server does it, with
    its model. The exit status is 1 if not all could be stored.
    """
    from octavo.cli.cache.access import folder_of, server_if_held
    from octavo.server.warming import read_warm_file

    engine = given(
        **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate),
        kv_memory=kv_memory,
        block_size=block_size,
        max_model_len=max_model_len,
        threads=threads,
        isa=isa,
    )
    lines = read_warm_file(file)
    path = folder_of(folder)
    server = server_if_held(path, admin_key)
    if server is None:
        disk = given(**kv_disk(str(path), kv_disk_limit, None, False))
        warmed = _warm_here(file, lines, model, {**engine, **disk})
    elif model is not None or engine or kv_disk_limit is not None:
        raise ConfigError(
            f"the server at {server.url} has {str(path)!r} and computes with its own model and settings; leave MODEL "
            "and the options of the engine out"
        )
    else:
        warmed = _warm_there(server, lines)
    _show([{"line": line.number, **each} for line, each in zip(lines, warmed, strict=True)], json_output)


def _warm_here(file: Path, lines: list[WarmLine], model: str | None, options: dict[str, Any]) -> list[dict[str, Any]]:
    import asyncio
    from dataclasses import asdict

    from octavo.async_engine import AsyncEngine
    from octavo.cli.progress import prompt_progress
    from octavo.cli.starting import open_assembly
    from octavo.server.config import ServerConfig
    from octavo.server.service import Service
    from octavo.server.warming import warm_lines

    engine = AsyncEngine.from_assembly(open_assembly(model, options))
    try:
        if engine.assembly.disk is None:
            raise ConfigError(str(engine.summary.disk))
        service = Service(engine, ServerConfig())
        with prompt_progress("warming") as report:
            found = asyncio.run(warm_lines(service, file, lines, None, report))
    finally:
        engine.shutdown()
    return [asdict(each) for each in found]


def _warm_there(server: RemoteFolder, lines: list[WarmLine]) -> list[dict[str, Any]]:
    from octavo.cli.progress import prompt_progress
    from octavo.errors import InvalidRequestError

    found = []
    with prompt_progress("warming") as report:
        for done, line in enumerate(lines):
            report(done, len(lines))
            try:
                found.append(server.warm(line.body))
            except InvalidRequestError as error:
                raise ConfigError(f"line {line.number}: {error}") from error
        report(len(lines), len(lines))
    return found


def _show(warmed: list[dict[str, Any]], json_output: bool) -> None:
    import json

    from octavo.cli.cache.tables import print_table

    names = ("num_tokens", "num_cached_tokens", "num_stored_tokens", "num_storable_tokens")
    tokens, cached, stored, storable = (sum(each[name] for each in warmed) for name in names)
    if json_output:
        print(json.dumps({"warmed": warmed, **dict(zip(names, (tokens, cached, stored, storable), strict=True))}))
    else:
        rows = [
            (
                each["id"] or "-",
                f"{each['line']:,}",
                f"{each['num_tokens']:,}",
                f"{each['num_cached_tokens']:,}",
                f"{each['num_stored_tokens']:,}",
                f"{each['num_pinned_blocks']:,}",
            )
            for each in warmed
        ]
        print_table(("id", "line", "tokens", "found", "on the disk", "blocks pinned"), rows, left=1)
        print(f"{tokens:,} tokens: {cached:,} were found, {tokens - cached:,} computed; {stored:,} are on the disk")
    if stored < storable:
        raise typer.Exit(1)
