"""Logs: one JSON object a line on stderr. Nothing of prompts, answers or API keys is ever in one."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from octavo.engine.assemble import StartupSummary
from octavo.errors import ConfigError, shown
from octavo.server.calls import Call

LEVELS = ("debug", "info", "warning", "error")
_REQUESTS = logging.getLogger("octavo.server.requests")
_SERVER = logging.getLogger("octavo.server")
_QUIET = frozenset({"/health", "/ready", "/metrics"})
"""Asked for every few seconds: told at ``debug`` while all is well."""


def check_level(level: str) -> str:
    """Raises :class:`ConfigError` for what is no level."""
    if level not in LEVELS:
        raise ConfigError(f"a log level is one of {', '.join(LEVELS)}; got {shown(level)}")
    return level


def configure(level: str, stream: TextIO | None = None) -> None:
    """Have everything that this process logs, warnings included, written as JSON lines.

    Args:
        level: one of :data:`LEVELS`.
        stream: ``None``: stderr.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines(shows_messages=level == "debug"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("asyncio", "uvicorn.error", "httpx"):  # what they say below this is of no use to who serves
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """A record as one line: ``time``, ``level``, ``event``, and the fields that it was given.

    An exception is told by its trace and the names of its types. Its message is left out, for it may quote a request,
    unless ``shows_messages``.
    """

    def __init__(self, *, shows_messages: bool = False) -> None:
        super().__init__()
        self._shows_messages = shows_messages

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        if not record.name.startswith("octavo"):
            line["logger"] = record.name
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._trace(record.exc_info[1])
        return json.dumps(line, default=str)

    def _trace(self, error: BaseException) -> str:
        if self._shows_messages:
            return "".join(traceback.format_exception(error))
        trace = "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return trace if cause is None else f"{self._trace(cause)}\nwhich led to\n{trace}"


def log_start(url: str, summary: StartupSummary) -> None:
    """Requests are taken: where, of what, and with how much memory."""
    fields = {
        "url": url,
        "model": summary.model,
        "isa": summary.isa,
        "threads": summary.threads,
        "weight_bytes": summary.weight_bytes,
        "kv_dtype": summary.kv_dtype,
        "kv_bytes": summary.allocated_bytes,
        "kv_tokens": summary.num_tokens,
        "max_model_len": summary.max_model_len,
    }
    disk = summary.disk
    if disk is not None and disk.problem is not None:
        fields["kv_disk_problem"] = disk.problem
    elif disk is not None:
        fields |= {
            "kv_disk": disk.folder,
            "kv_disk_limit": disk.limit,
            "kv_disk_bytes": disk.num_bytes,
            "kv_disk_blocks": disk.num_blocks,
            "kv_disk_foreign_blocks": disk.num_foreign_blocks,
        }
    _SERVER.info("serving", extra={"fields": fields})


def log_failure(call: Call, error: BaseException) -> None:
    """Something of ours went wrong while ``call`` was answered."""
    _SERVER.error("request failed", exc_info=error, extra={"fields": {"request_id": call.request_id}})


def log_call(call: Call, model: str) -> None:
    """The line of one request."""
    level = _level(call)
    if _REQUESTS.isEnabledFor(level):
        _REQUESTS.log(level, "request", extra={"fields": call_fields(call, model)})


def call_fields(call: Call, model: str) -> dict[str, Any]:
    """What is told of a request; what there is not, is left out."""
    fields: dict[str, Any] = {
        "request_id": call.request_id,
        "tenant": None if call.caller is None else call.caller.tenant,
        "endpoint": call.endpoint[:200],
        "method": call.method,
        "status": call.status,
    }
    if call.entries:
        fields.update(_usage_fields(call, model))
    fields["duration_s"] = round(call.duration, 6)
    fields["error"] = call.error
    return {name: value for name, value in fields.items() if value is not None}


def _usage_fields(call: Call, model: str) -> dict[str, Any]:
    first, usage = call.entries[0], call.usage
    queue = None if first.times is None else first.times.time_in_queue
    to_first_token = first.time_to_first_token
    return {
        "model": model,
        "cache_key": call.cache_key,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "finish_reasons": [outcome for entry in call.entries for outcome in entry.outcomes],
        "queue_s": None if queue is None else round(queue, 6),
        "ttft_s": None if to_first_token is None else round(to_first_token, 6),
    }


def _level(call: Call) -> int:
    if call.status == 500:
        return logging.ERROR
    if call.has_failed:
        return logging.WARNING
    return logging.DEBUG if call.status == 200 and call.endpoint in _QUIET else logging.INFO
