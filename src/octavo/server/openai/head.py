"""What every answer of one request begins with: its id, when it was made, by what."""

from __future__ import annotations

import hashlib
import time
from functools import lru_cache
from typing import Any

from octavo import __version__
from octavo.engine.assemble import StartupSummary
from octavo.server.calls import Call
from octavo.server.context import Context


def head(server: Context, call: Call, prefix: str, kind: str, model: str) -> dict[str, Any]:
    """``prefix``: of the id; the rest is that of the request, so that logs can be searched for it."""
    return {
        "id": f"{prefix}-{call.request_id.removeprefix('req_')}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": _fingerprint(server.engine.summary),
    }


@lru_cache(maxsize=16)
def _fingerprint(summary: StartupSummary) -> str:
    """Equal where equal requests with equal seeds get equal answers: one version, model, KV format and machine kind."""
    parts = (__version__, summary.model, summary.kv_dtype, summary.kv_8bit_layers, summary.isa)
    return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
