"""Warming: beginnings of prompts that are computed before anybody asks, or loaded if they were once computed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from octavo.errors import ConfigError, InvalidRequestError
from octavo.server.calls import Call
from octavo.server.disk_tenants import salt_of
from octavo.server.errors import ApiError, invalid
from octavo.server.keys import KeyRing
from octavo.server.named_caches_schema import BeginningBody
from octavo.server.openai.fields import Words
from octavo.server.prompt_cache.named import Content
from octavo.server.service import Service
from octavo.server.validation import validation_error
from octavo.tiers.managing import pin_blocks


class WarmBody(BeginningBody):
    """A line of a warm file: what ``POST /v1/caches`` calls it, for whom, and whether it stays on the disk for good.

    Attributes:
        tenant: as :func:`octavo.server.disk_tenants.salt_of` has it.
    """

    tenant: Words = ""
    pin: bool = False


@dataclass(frozen=True, slots=True)
class WarmLine:
    """A line that was read: ``body`` as it stands there, for a server; ``number`` counts from 1."""

    number: int
    body: dict[str, Any]
    content: Content
    tenant: str
    pin: bool


@dataclass(frozen=True, slots=True)
class Warmed:
    """What came of one beginning, in tokens.

    Attributes:
        id: of the prefix on the disk; empty if it has no whole block.
        num_cached_tokens: found in memory or on the disk; the others were computed.
        num_stored_tokens: durable on the disk, in whole blocks; ``num_storable_tokens`` could be.
        num_pinned_blocks: of all layer groups.
    """

    id: str
    num_tokens: int
    num_cached_tokens: int
    num_stored_tokens: int
    num_storable_tokens: int
    num_pinned_blocks: int


def read_warm_file(path: Path) -> list[WarmLine]:
    """The beginnings in a file of JSON Lines. Lines that are empty count not.

    Raises:
        ConfigError: it cannot be read, or a line is not what one may be; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {str(path)!r}: it is not UTF-8 text") from error
    return [_read_line(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]


async def warm(service: Service, call: Call, content: Content, *, salt: bytes, pin: bool) -> Warmed:
    """Compute or load ``content`` for whoever caches under ``salt``, and make it durable, if there is a disk tier.

    Raises:
        ApiError, InvalidRequestError: it cannot be rendered or computed, or is too long.
        EngineDeadError: the engine failed, now or earlier.
        OSError: it could not be pinned.
    """
    shown, token_ids = await service.beginning(call, content)
    if not token_ids:
        raise invalid("the chat template writes nothing of this that stays whatever follows; it cannot be warmed", None)
    prepared = await asyncio.to_thread(service.preparation.prewarming, shown, token_ids)
    cached = 0
    async with aclosing(service.engine.generate(prepared.prompt, prepared.sampling, cache_salt=salt)) as outputs:
        async for output in outputs:
            cached = output.num_cached_tokens or cached
    stored = await service.engine.store_cached(token_ids, cache_salt=salt)
    assembly = service.engine.assembly
    hashes = assembly.engine.block_hashes(token_ids, salt)
    pinned = 0
    if pin and assembly.disk is not None:
        pinned = await asyncio.to_thread(pin_blocks, assembly.disk.folder, hashes)
    return Warmed(
        id=hashes[-1].hex()[:12] if hashes else "",
        num_tokens=len(token_ids),
        num_cached_tokens=cached,
        num_stored_tokens=stored,
        num_storable_tokens=len(hashes) * assembly.summary.block_size,
        num_pinned_blocks=pinned,
    )


async def warm_lines(
    service: Service, path: Path, lines: Sequence[WarmLine], keys: KeyRing | None, progress: Callable[[int, int], None]
) -> list[Warmed]:
    """The same for the lines of a file, one after another, without a server's request around it. ``progress``: told
    (done, in all).

    Raises:
        ConfigError: as :func:`warm`; names the line.
        EngineDeadError, OSError: as :func:`warm`.
    """
    found = []
    for done, line in enumerate(lines):
        progress(done, len(lines))
        try:
            salt = salt_of(line.tenant, keys)
            found.append(await warm(service, Call(str(path)), line.content, salt=salt, pin=line.pin))
        except ApiError as error:
            raise ConfigError(f"{_where(path, line.number)}: {error.message}") from error
        except (InvalidRequestError, ConfigError) as error:
            raise ConfigError(f"{_where(path, line.number)}: {error}") from error
    progress(len(lines), len(lines))
    return found


def _read_line(path: Path, number: int, line: str) -> WarmLine:
    where = _where(path, number)
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a JSON object with prompt or messages")
    try:
        body = WarmBody.model_validate(found)
        return WarmLine(number, found, body.content(), body.tenant, body.pin)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_problem(error, found)}") from error
    except ApiError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    except InvalidRequestError as error:
        raise ConfigError(f"{where}: {error}") from error


def _problem(error: ValidationError, body: dict[str, Any]) -> str:
    """In the words that a client of the server would read."""
    errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
    return validation_error(RequestValidationError(errors, body=body)).message


def _where(path: Path, number: int) -> str:
    return f"line {number} of {str(path)!r}"
