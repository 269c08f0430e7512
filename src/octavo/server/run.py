"""serve: an application on a socket until it is told to end, and then to the end of what was begun."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.connections import Connection, connection_class
from octavo.server.context import Context

_GRACE = 5
"""Seconds that streams have to tell their clients that they were ended, and that requests have to arrive whole."""


def listen(config: ServerConfig) -> socket.socket:
    """A socket at the address of ``config``, which nobody can reach before it is served.

    Raises:
        ConfigError: there is no such address, or it is in use.
    """
    where = f"{config.host}:{config.port}"
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {where}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror or error}; --port 0 takes any free one"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find what listens there."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, listener: socket.socket, ready: Callable[[], None]) -> bool:
    """Serve until SIGINT or SIGTERM; then take no new requests and finish those that run. A second signal ends at once.

    Args:
        app: from :func:`octavo.server.app.create_app`.
        ready: called once requests are taken.

    Returns:
        Whether all that was begun had its end; not so after a second signal.

    Raises:
        ConfigError: another server that was started at the same time has the address.
    """
    try:
        listener.listen()
    except OSError as error:
        raise ConfigError(f"cannot listen on {url_of(listener)}: {error.strerror}") from error
    server = Server(app, ready)
    server.run(sockets=[listener])
    return not server.force_exit


class Server(uvicorn.Server):
    """uvicorn with our connections, and our way to end::

    signal                      shutdown_timeout               + 5 s
      | not ready; nothing new        | what runs is ended with     | what is left
      | is taken; what runs goes on   | an error in its dialect     | is cut off
    """

    def __init__(self, app: FastAPI, ready: Callable[[], None] = lambda: None) -> None:
        self._context: Context = app.state.octavo
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shutdown_timeout = self._context.config.shutdown_timeout
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(self._context.config),
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=math.ceil(self._context.config.keep_alive),
                timeout_graceful_shutdown=math.ceil(self._shutdown_timeout) + _GRACE,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.is_ending = True
        ends = {asyncio.create_task(self._end_answers()), asyncio.create_task(self._end_requests())}
        try:
            await super().shutdown(sockets)
            if self.force_exit:  # uvicorn leaves that out then, and its task would end with a trace
                await self.lifespan.shutdown()
        finally:
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called between two instructions of whatever runs, so it only leaves word."""
        self._context.is_ending = True
        if self.should_exit:
            self.force_exit = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cut)
        self.should_exit = True

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._shutdown_timeout)
        await self._context.service.end_all()

    async def _end_requests(self) -> None:
        """Those that do not get whole: nobody shall wait for them."""
        await asyncio.sleep(_GRACE)
        self._cut(lambda connection: connection.is_arriving)

    def _cut(self, chosen: Callable[[Connection], bool] = lambda _: True) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and chosen(connection):
                connection.transport.abort()
