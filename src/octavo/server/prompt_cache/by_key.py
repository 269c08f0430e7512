"""Totals of each tenant's requests by the key that the client gave them: ``prompt_cache_key``."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from octavo.server.usage import Usage

MAX_KEYS = 1000
"""Of one tenant. With more, those go that were not used for longest."""


@dataclass(slots=True)
class KeyTotals:
    """What requests with one key used, as their usage says it."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class UsageByKey:
    """Lives on one event loop, so it needs no lock."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._tenants: dict[str, OrderedDict[str | None, KeyTotals]] = {}

    def count(self, tenant: str, key: str | None, usage: Usage, *, is_first: bool = True) -> None:
        """One more prompt. ``is_first``: of its request, which counts once, however many prompts it has."""
        totals = self._tenants.setdefault(tenant, OrderedDict())
        found = totals.setdefault(key, KeyTotals())
        totals.move_to_end(key)
        found.requests += is_first
        found.prompt_tokens += usage.prompt_tokens
        found.cached_tokens += usage.read_tokens
        found.cache_write_tokens += usage.written_tokens.total()
        if len(totals) > self._max_keys:
            totals.popitem(last=False)

    def of(self, tenant: str) -> list[tuple[str | None, KeyTotals]]:
        """Keys and their totals, the one used last first. ``None``: requests without a key."""
        return list(reversed(self._tenants.get(tenant, OrderedDict()).items()))
