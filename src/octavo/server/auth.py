"""Access: who a request comes from, and whether it may come at all; known before its body is read."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from octavo.errors import ConfigError
from octavo.server.calls import Caller, call_of
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.keys import KeyRing

OPEN = frozenset({"/health", "/ready", "/version"})
"""What everybody may ask for: it tells nothing, and supervisors have no keys."""
METRICS = "/metrics"


class Access:
    """Tells callers by their keys. Without keys everybody is the same tenant, and an admin where only this machine can
    ask.

    Args:
        keys: ``None``: no keys are needed.
    """

    def __init__(self, config: ServerConfig, keys: KeyRing | None) -> None:
        self._keys = keys
        self._open = OPEN | {METRICS} if config.public_metrics else OPEN
        self._is_local = is_loopback(config.host)
        self._origins = config.cors_origins

    def caller(self, scope: Scope) -> Caller:
        """Who asks.

        Raises:
            ApiError: 401, the key is missing or wrong; 403, a page of another site asks where there are no keys.
        """
        headers = Headers(scope=scope)
        if self._keys is None:
            self._check_origin(headers)
            return Caller(is_admin=self._is_local)
        if scope["path"] in self._open:
            return Caller()
        found = [caller for key in _given(headers) if (caller := self._keys.find(key)) is not None]
        if not found:
            problem = "is not known" if _given(headers) else "is missing"
            raise ApiError(
                ErrorKind.AUTHENTICATION,
                f"the API key {problem}; send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        return found[0]

    def _check_origin(self, headers: Headers) -> None:
        """Where keys keep nobody out, what any site's page in a browser may do here has to be asked from its origin:
        a page may send some requests without being allowed to read the answers, and may call this machine by a name of
        its own.
        """
        origin = headers.get("origin")
        if origin is None or origin in self._origins or "*" in self._origins:
            return
        try:
            site = urlsplit(origin)
        except ValueError:  # no address: it cannot be ours
            site = urlsplit("")
        same = site.netloc == headers.get("host")
        if not same or (self._is_local and not is_loopback(site.hostname or "")):
            raise ApiError(
                ErrorKind.PERMISSION,
                "pages of this origin may not call this server; --cors-origin allows it",
                code="origin_not_allowed",
            )


def check_bind(host: str, has_keys: bool, allow_anyone: bool) -> None:
    """Refuse to serve everybody unless that is what was asked for.

    Raises:
        ConfigError: naming both ways out.
    """
    if not (has_keys or allow_anyone or is_loopback(host)):
        raise ConfigError(
            f"without API keys the server listens to this machine alone, not on {host}: give keys with --api-key-file "
            "or OCTAVO_API_KEY, or let in whoever can reach it with --allow-anyone"
        )


def require_admin(connection: HTTPConnection) -> None:
    """A dependency of endpoints that are for administrators.

    Raises:
        ApiError: 403.
    """
    caller = call_of(connection).caller
    if caller is None or not caller.is_admin:
        raise ApiError(
            ErrorKind.PERMISSION, "this is for administrators: it needs an admin's API key", code="admin_key_required"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _given(headers: Headers) -> Sequence[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (headers.get("x-api-key", ""), bearer) if key]
