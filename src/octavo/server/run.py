"""serve: an application on a socket until it is told to end, and then to the end of what was begun."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI


def serve(app: FastAPI, *, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; then take no new requests and finish those that run."""
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False)
    uvicorn.Server(config).run()
