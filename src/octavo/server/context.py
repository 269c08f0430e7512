"""Context: what every endpoint works with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from octavo.async_engine import AsyncEngine
from octavo.config import parse_bytes
from octavo.errors import shown
from octavo.server.calls import Call, call_of
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.keys import KeyRing
from octavo.server.openai.responses_store import ResponseStore
from octavo.server.service import Service


@dataclass(slots=True)
class Context:
    """One server: its engine, its settings, its service, and the responses it keeps.

    ``keys``: who is let in; ``None``: everybody. ``is_ending``: it was told to end; what was begun goes on.
    """

    engine: AsyncEngine
    config: ServerConfig
    service: Service
    keys: KeyRing | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    is_ending: bool = False
    responses: ResponseStore = field(init=False)

    def __post_init__(self) -> None:
        self.responses = ResponseStore(
            max_responses=self.config.max_stored, max_bytes=parse_bytes(self.config.max_stored_bytes)
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(self.config.model_names) or (_public_name(self.engine.summary.model),)

    def check_model(self, name: str) -> None:
        """Refuse a model that is not served.

        Raises:
            ApiError: 404.
        """
        if name not in self.model_names:
            raise ApiError(
                ErrorKind.NOT_FOUND,
                f"there is no model {shown(name)}; this server has {', '.join(map(repr, self.model_names))}",
                param="model",
                code="model_not_found",
            )


def _public_name(model: str) -> str:
    """What clients call a model: the last part of a path, for where it lies on this machine is not theirs to know."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def _context(request: Request) -> Context:
    context: Context = request.app.state.octavo
    return context


Server = Annotated[Context, Depends(_context)]
"""An endpoint's parameter: the server it belongs to."""
CurrentCall = Annotated[Call, Depends(call_of)]
"""An endpoint's parameter: the call it answers."""
