"""RemoteFolder: a folder that a server has, managed through its admin API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from octavo.errors import AdminError, ConfigError, InvalidRequestError

_TIMEOUT = 60.0
"""Seconds without a byte after which a server counts as gone, but for what it computes."""
_Found = dict[str, Any]
_UNAUTHORISED = (401, 403)
_WRONG = (400, 413, 422)


class RemoteFolder:
    """See :class:`octavo.cli.cache.access.Management`. Every method raises as the first.

    Args:
        url: of the server.
        folder: that it has, for messages.
        key: an administrator's; ``None``: the server may let in everybody.

    Raises:
        ConfigError: that is no key.
    """

    def __init__(self, url: str, folder: Path, key: str | None) -> None:
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError("an API key is printable ASCII without spaces, and not empty")
        self.url = url
        self._folder = folder
        self._key = key
        self._opener = build_opener(ProxyHandler({}))  # it is on this machine, whatever proxies there are

    def list_prefixes(self, tenant: str | None, model: str | None) -> dict[str, Any]:
        """
        Raises:
            InvalidRequestError: the server says that this cannot be asked.
            AdminError: the server cannot be reached, fails, or wants another key.
        """
        chosen = {name: value for name, value in (("tenant", tenant), ("model", model)) if value is not None}
        return self._ask(f"/prefixes?{urlencode(chosen)}")

    def usage(self) -> dict[str, Any]:
        return self._ask("")

    def verify(self, progress: Callable[[int, int], None]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with self._answer("/verify", {}) as answer:
            for line in answer:
                found = json.loads(line)
                if "total" in found:
                    progress(found["done"], found["total"])
        if "num_ok" not in found:
            raise AdminError(f"the server at {self.url} ended before all was verified")
        return found

    def clear(
        self, ids: Sequence[str], tenant: str | None, model: str | None, *, dry_run: bool = False
    ) -> dict[str, int]:
        everything = not ids and tenant is None and model is None
        body = {"ids": list(ids), "tenant": tenant, "model": model, "everything": everything, "dry_run": dry_run}
        return self._ask("/clear", body)

    def pin(self, ids: Sequence[str]) -> dict[str, int]:
        return self._ask("/pin", {"ids": list(ids)})

    def unpin(self, ids: Sequence[str]) -> dict[str, int]:
        return self._ask("/unpin", {"ids": list(ids)})

    def warm(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Waits as long as it takes to compute. ``body``: a line of a warm file."""
        return self._ask("/warm", body, timeout=None)

    def _ask(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = _TIMEOUT) -> _Found:
        with self._answer(path, body, timeout=timeout) as answer:
            found: _Found = json.loads(answer.read())
            return found

    @contextmanager
    def _answer(
        self, path: str, body: Mapping[str, Any] | None, *, timeout: float | None = _TIMEOUT
    ) -> Iterator[IO[bytes]]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            with self._opener.open(Request(f"{self.url}/admin/disk{path}", data, headers), timeout=timeout) as answer:
                yield answer
        except HTTPError as error:
            self._refused(error)
        except (URLError, OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise AdminError(
                f"{str(self._folder)!r} belongs to the server at {self.url}, which cannot be asked: {reason}"
            ) from error

    def _refused(self, error: HTTPError) -> NoReturn:
        message = _message(error)
        if error.code in _WRONG:
            raise InvalidRequestError(message) from error
        if error.code in _UNAUTHORISED:
            raise AdminError(
                f"{str(self._folder)!r} belongs to the server at {self.url}, which wants an administrator's API key, "
                f"by --admin-key or OCTAVO_ADMIN_KEY: {message}"
            ) from error
        raise AdminError(f"the server at {self.url} answers with status {error.code}: {message}") from error


def _message(error: HTTPError) -> str:
    """In the server's words, if these are that."""
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return str(error.reason)
