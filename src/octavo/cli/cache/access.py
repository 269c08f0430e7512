"""From a folder to who manages it: this process, or the server that has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from octavo.cli.cache.local import LocalFolder
from octavo.cli.cache.remote import RemoteFolder
from octavo.config import default_kv_disk
from octavo.errors import ConfigError, TierInUseError
from octavo.server.keys import ADMIN_KEY
from octavo.tiers.folder import TierFolder
from octavo.tiers.holding import LOCK, hold, holder_of, release
from octavo.tiers.slabs import slot_sizes

_NO_LIMIT = 2**63 - 1
"""Nothing shall go because somebody looks."""
Progress = Callable[[int, int], None]


class Management(Protocol):
    """What one can ask of a folder, wherever it is answered; see :mod:`octavo.tiers.managing` for what comes back."""

    def list_prefixes(self, tenant: str | None, model: str | None) -> dict[str, Any]: ...
    def usage(self) -> dict[str, Any]: ...
    def verify(self, progress: Progress) -> dict[str, Any]: ...
    def clear(
        self, ids: Sequence[str], tenant: str | None, model: str | None, *, dry_run: bool = False
    ) -> dict[str, int]: ...
    def pin(self, ids: Sequence[str]) -> dict[str, int]: ...
    def unpin(self, ids: Sequence[str]) -> dict[str, int]: ...


def folder_of(given: Path | None) -> Path:
    """The folder that is meant. Raises ConfigError: there is no place for the default one."""
    return default_kv_disk() if given is None else given


@contextmanager
def managed(folder: Path, admin_key: str | None) -> Iterator[Management | None]:
    """Whoever manages ``folder``; ``None``: nothing was ever kept there, and nothing is made.

    Raises:
        ConfigError: it cannot be used.
        TierInUseError: another process has it, and is no server that could be asked.
    """
    if not _is_tier(folder):
        yield None
        return
    found = _opened(folder, admin_key)
    if isinstance(found, RemoteFolder):
        yield found
        return
    try:
        found.announce({})
        yield LocalFolder(found)
    finally:
        found.close()


def server_if_held(folder: Path, admin_key: str | None) -> RemoteFolder | None:
    """The server that has ``folder``; ``None``: nobody has it. Raises as :func:`managed`."""
    try:
        release(hold(folder))
    except TierInUseError as error:
        return server_of(folder, admin_key, error)
    return None


def server_of(folder: Path, admin_key: str | None, held: TierInUseError) -> RemoteFolder:
    """The server that has left word in ``folder``. Raises TierInUseError: there is none."""
    url = holder_of(folder).get("url", "")
    if not url.startswith(("http://", "https://")):
        raise TierInUseError(
            f"{held}. It has not said where it can be asked: it is a program, or a server that is still starting. "
            "Wait, or end it"
        ) from held
    return RemoteFolder(url, folder, os.environ.get(ADMIN_KEY) if admin_key is None else admin_key)


def _opened(folder: Path, admin_key: str | None) -> TierFolder | RemoteFolder:
    try:
        return TierFolder(folder, limit=_NO_LIMIT)
    except TierInUseError as error:
        return server_of(folder, admin_key, error)


def _is_tier(folder: Path) -> bool:
    try:
        return (folder / LOCK).exists() or (folder.exists() and bool(slot_sizes(folder)))
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be used as a disk tier: {error.strerror}") from error
