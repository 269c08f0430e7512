"""Why a response read no more from the cache, by comparing it with another one: ``prompt_cache_diagnostics``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.server.prompt_cache.diagnosis import changed
from octavo.server.prompt_cache.history import Record


def diagnosed(before: Record | None, is_stored: bool, now: Record) -> dict[str, Any]:
    """What the client is told.

    A hit: all that the earlier request had kept, as far as a prompt can be reused, was read. A miss: the two prompts
    differ before its end. Otherwise nothing that was sent explains it (it was evicted, its time was over, this
    request reads elsewhere or not at all): ``unavailable``.

    Of the API's reasons there are those that can be true here: a key, a tier, a format or verbosity are no part of a
    prompt, and all names that a server has are of one model.

    Args:
        before: of the response it is compared with; ``None``: nothing is known of it.
        is_stored: whether that response can still be retrieved.
        now: of a request whose figures are settled.
    """
    if before is None:
        return {"type": "unavailable" if is_stored else "comparison_response_not_found"}
    wanted = min(before.num_kept or len(before.prompt), len(now.prompt) - 1)
    change = changed(before, replace(now, model=before.model))
    if change.kind == "none":  # it may end with what every prompt ends with, which then is not shared
        wanted = min(wanted, change.num_shared)
    if now.num_read is not None and now.num_read >= wanted:
        return {"type": "cache_hit"}
    if change.kind == "none" or change.num_shared >= wanted:
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": _reason(change.kind, before, now),
        "cache_missed_tokens": change.num_missed,
        "comparison_reusable_tokens": change.num_shared,
    }


def _reason(kind: str, before: Record, now: Record) -> str:
    """Where no text of the two differs, their reasoning efforts may: templates switch thinking by a variable."""
    if kind == "other" and _thinks(before) != _thinks(now):
        return "reasoning_effort_changed"
    return "tools_changed" if kind == "tools" else "input_changed"


def _thinks(record: Record) -> Any:
    return None if record.request is None else record.request.template_kwargs.get("enable_thinking")
