"""LocalFolder: a folder that nobody else has, managed by this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from octavo.server.disk_tenants import choice_of
from octavo.tiers import managing
from octavo.tiers.folder import TierFolder
from octavo.tiers.verifying import verify


class LocalFolder:
    """See :class:`octavo.cli.cache.access.Management`."""

    def __init__(self, folder: TierFolder) -> None:
        self._folder = folder

    def list_prefixes(self, tenant: str | None, model: str | None) -> dict[str, Any]:
        return managing.list_prefixes(self._folder, choice_of(tenant, model, None))

    def usage(self) -> dict[str, Any]:
        return managing.usage(self._folder, None)

    def verify(self, progress: Callable[[int, int], None]) -> dict[str, Any]:
        return asdict(verify(self._folder, progress))

    def clear(
        self, ids: Sequence[str], tenant: str | None, model: str | None, *, dry_run: bool = False
    ) -> dict[str, int]:
        return managing.clear(self._folder, ids, choice_of(tenant, model, None), dry_run=dry_run)

    def pin(self, ids: Sequence[str]) -> dict[str, int]:
        return managing.pin(self._folder, ids)

    def unpin(self, ids: Sequence[str]) -> dict[str, int]:
        return managing.unpin(self._folder, ids)
