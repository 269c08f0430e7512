"""What administrators may ask of the disk tier, and do with it: /admin/disk."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from octavo.errors import ConfigError
from octavo.server.auth import require_admin
from octavo.server.context import Context, CurrentCall, Server
from octavo.server.disk_tenants import choice_of, salt_of
from octavo.server.errors import ApiError, ErrorKind, as_api_error, invalid
from octavo.server.streaming import JSON, until_disconnect
from octavo.server.validation import Body
from octavo.server.warming import WarmBody, Warmed, warm
from octavo.tiers import managing
from octavo.tiers.disk import DiskTier
from octavo.tiers.folder import TierFolder
from octavo.tiers.managing import Choice
from octavo.tiers.verifying import Verified, verify

_TELL_SECONDS = 0.2
router = APIRouter(prefix="/admin/disk", dependencies=[Depends(require_admin)])


class ChoiceQuery(BaseModel):
    """Whose blocks are meant; see :func:`octavo.server.disk_tenants.choice_of`."""

    model_config = ConfigDict(extra="forbid")

    tenant: str | None = None
    model: str | None = None


class IdsBody(Body):
    """Stored prefixes, each by the beginning of its hash."""

    ids: Annotated[list[str], Field(min_length=1, max_length=10_000)]


class ClearBody(Body):
    """What to forget. ``everything`` is said by itself, so that no field left out forgets too much. ``dry_run``: only
    say how much it would be.
    """

    ids: Annotated[list[str], Field(max_length=10_000, default_factory=list)]
    tenant: str | None = None
    model: str | None = None
    everything: bool = False
    dry_run: bool = False


@router.get("")
async def usage(server: Server) -> Response:
    """What the folder's files take, and whose the blocks are."""
    folder = _disk(server).folder
    return JSON(await asyncio.to_thread(managing.usage, folder, folder.limit))


@router.get("/prefixes")
async def list_prefixes(server: Server, query: Annotated[ChoiceQuery, Query()]) -> Response:
    """What is stored, as beginnings of prompts; the one first that was used last."""
    folder, choice = _disk(server).folder, _choice(server, query.tenant, query.model)
    return JSON(await asyncio.to_thread(managing.list_prefixes, folder, choice))


@router.post("/verify")
async def verify_blocks(server: Server) -> Response:
    """Read and prove every block, and drop what is damaged. Lines of JSON say how far it is, and what was found."""
    return StreamingResponse(_verification(_disk(server).folder), media_type="application/x-ndjson")


@router.post("/clear")
async def clear(server: Server, body: ClearBody) -> Response:
    """Forget blocks, and overwrite what they held. What is in memory stays there."""
    disk = _disk(server)
    choice = _choice(server, body.tenant, body.model)
    if not (body.ids or body.everything or choice != Choice()):
        raise invalid("nothing is chosen; give ids, tenant or model, or everything", "ids")
    if body.everything and (body.ids or choice != Choice()):
        raise invalid("everything leaves no choice; give it without ids, tenant and model", "everything")
    await asyncio.to_thread(disk.flush)  # what is queued was stored before this
    return JSON(await asyncio.to_thread(managing.clear, disk.folder, body.ids, choice, dry_run=body.dry_run))


@router.post("/pin")
async def pin(server: Server, body: IdsBody) -> Response:
    """Keep prefixes whatever comes: none of their blocks is evicted or expires."""
    return JSON(await asyncio.to_thread(managing.pin, _disk(server).folder, body.ids))


@router.post("/unpin")
async def unpin(server: Server, body: IdsBody) -> Response:
    """Have prefixes go as others do."""
    return JSON(await asyncio.to_thread(managing.unpin, _disk(server).folder, body.ids))


@router.post("/warm")
async def warm_prefix(http: Request, server: Server, call: CurrentCall, body: WarmBody) -> Response:
    """Compute or load the beginning of a prompt, and make it durable."""
    _disk(server)
    return JSON(asdict(await until_disconnect(http, _warmed(server, call, body))))


async def _warmed(server: Context, call: CurrentCall, body: WarmBody) -> Warmed:
    try:
        salt = salt_of(body.tenant, server.keys)
    except ConfigError as error:
        raise invalid(str(error), "tenant") from error
    try:
        with body.wording.applied():
            content = await asyncio.to_thread(body.content)
            return await warm(server.service, call, content, salt=salt, pin=body.pin)
    except Exception as error:
        raise as_api_error(error) from error


def _disk(server: Context) -> DiskTier:
    """Raises ApiError: there is none (404)."""
    disk = server.engine.assembly.disk
    if disk is None:
        summary = server.engine.summary.disk
        why = "" if summary is None else f": {summary.problem}"
        raise ApiError(ErrorKind.NOT_FOUND, f"this server keeps nothing on the disk{why}", code="no_disk_tier")
    return disk


def _choice(server: Context, tenant: str | None, model: str | None) -> Choice:
    try:
        return choice_of(tenant, model, server.keys)
    except ConfigError as error:
        raise invalid(str(error), "tenant") from error


async def _verification(folder: TierFolder) -> AsyncIterator[bytes]:
    """``{"done": .., "total": ..}`` in bytes, time and again, and at last what :class:`Verified` has. Whoever hangs up
    ends it.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()
    hung_up, told = threading.Event(), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if hung_up.is_set():
            raise _HungUpError
        if time.monotonic() - told >= _TELL_SECONDS or done == total:
            told = time.monotonic()
            loop.call_soon_threadsafe(lines.put_nowait, {"done": done, "total": total})

    def work() -> Verified | None:
        with suppress(_HungUpError):
            return verify(folder, progress)
        return None

    verified = asyncio.ensure_future(asyncio.to_thread(work))
    verified.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        while (line := await lines.get()) is not None:
            yield _line(line)
        found = verified.result()
        assert found is not None  # nobody has hung up
        yield _line(asdict(found))
    finally:
        hung_up.set()


class _HungUpError(Exception):
    """Nobody waits for what is verified any more."""


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
