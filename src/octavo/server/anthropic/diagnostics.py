"""Diagnostics: why a prompt is not the one of an earlier message with something added, as the API says it."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from octavo.server.anthropic import options
from octavo.server.prompt_cache.diagnosis import Change, changed
from octavo.server.prompt_cache.history import History, Record

Diagnostics: TypeAlias = dict[str, Any] | None
"""``diagnostics`` of a message."""
_REASONS = {
    "model": "model_changed",
    "tools": "tools_changed",
    "system": "system_changed",
    "messages": "messages_changed",
}


async def compared(history: History, record: Record, wanted: options.Diagnostics | None) -> Diagnostics:
    """``record`` beside that of the message which the client names. ``None``: nothing was asked, or nothing of the
    earlier prompt is missing here.
    """
    if wanted is None or wanted.previous_message_id is None:
        return None
    before = history.find(record.tenant, wanted.previous_message_id)
    if before is None:
        return _reason("previous_message_not_found")
    change = await asyncio.to_thread(changed, before, record)
    return _told(change)


def _told(change: Change) -> Diagnostics:
    if change.kind == "none":
        return None
    reason = _REASONS.get(change.kind)
    if reason is None:
        return _reason("unavailable")
    return _reason(reason, cache_missed_input_tokens=change.num_missed)


def _reason(kind: str, **more: int) -> dict[str, Any]:
    return {"cache_miss_reason": {"type": kind, **more}}
