"""API keys: one line each in a file, known by their SHA-256 alone."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octavo.config import user_cache
from octavo.errors import ConfigError, shown
from octavo.server.calls import Caller

API_KEY, ADMIN_KEY = "OCTAVO_API_KEY", "OCTAVO_ADMIN_KEY"
"""Environment variables that each hold one key."""
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_SECRET_BYTES = 32
_EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: ``digest`` is the SHA-256 of its text."""

    tenant: str
    digest: bytes
    is_admin: bool = False

    @classmethod
    def of(cls, text: str, tenant: str, is_admin: bool = False) -> Key:
        return cls(tenant, _digest(text), is_admin)

    @property
    def line(self) -> str:
        """Its line in a file of keys."""
        return f"{self.tenant} sha256:{self.digest.hex()}{' admin' if self.is_admin else ''}"


class KeyRing:
    """Every key that opens this server, and who has it.

    Args:
        keys: at least one.
        secret: what the tenants' cache salts are derived from; see :func:`server_secret`.
        share_cache: groups of tenants that find each other's prompts in the cache: ``"alice,bob"`` each, or ``"*"``
            for all tenants.

    Raises:
        ConfigError: there are none, two are the same, or a group is not one of their tenants.
    """

    def __init__(self, keys: Iterable[Key], secret: bytes, share_cache: Iterable[str] = ()) -> None:
        known = list(keys)
        self._secret = secret
        self._groups = _groups(share_cache, {key.tenant for key in known})
        self._keys = [(key.digest, Caller(key.tenant, self.salt_of(key.tenant), key.is_admin)) for key in known]
        if not self._keys:
            raise ConfigError("there are no API keys, so nobody could be let in; make one with: octavo key TENANT")
        if len({digest for digest, _ in self._keys}) < len(self._keys):
            raise ConfigError("an API key is given twice; a key has one tenant, and is an admin's or is not")

    def find(self, text: str) -> Caller | None:
        """Whose key this is. Takes as long for a wrong key as for a right one, wherever it stands in the list."""
        digest, found = _digest(text), None
        for known, caller in self._keys:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def salt_of(self, tenant: str) -> bytes:
        """Under which salt this server caches blocks of a tenant, or of a group that is named by its tenants."""
        return cache_salt(self._secret, self._groups.get(tenant, tenant))


def cache_salt(secret: bytes, name: str) -> bytes:
    """Under which salt blocks of a tenant, or of a group, are cached: the same whatever key it comes with, unknown to
    everybody else.
    """
    return hmac.digest(secret, name.encode(), "sha256")


def new_key() -> str:
    """A new key: 256 random bits, so that nobody finds it out from its SHA-256."""
    return f"octavo-{secrets.token_urlsafe(32)}"


def check_tenant(tenant: str) -> str:
    """Raises :class:`ConfigError` for what cannot be a tenant's name."""
    if _TENANT.fullmatch(tenant) is None:
        raise ConfigError(
            f"a tenant's name is up to 64 letters, digits, '.', '_' and '-', the first a letter or digit; "
            f"got {shown(tenant)}"
        )
    return tenant


def read_keys(path: Path) -> list[Key]:
    """The keys of a file: ``TENANT sha256:HEX [admin]`` a line; empty lines and those that begin with ``#`` count not.

    Raises:
        ConfigError: it cannot be read, others than its owner may write it, or a line is no key. No line is quoted in
            the message, for somebody may have put a key there.
    """
    try:
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(f"others may write {str(path)!r}, and let themselves in: chmod go-w it first")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot read the API keys in {str(path)!r}: {_reason(error)}") from error
    keys = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            keys.append(_read_line(line.split(), f"line {number} of {str(path)!r}"))
    return keys


def is_readable_by_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def environment_keys(environment: Mapping[str, str]) -> list[Key]:
    """The keys of ``OCTAVO_API_KEY`` (tenant ``default``) and ``OCTAVO_ADMIN_KEY`` (tenant ``admin``).

    Raises:
        ConfigError: one is empty, or holds what no header can.
    """
    keys = []
    for name, tenant, is_admin in ((API_KEY, Caller().tenant, False), (ADMIN_KEY, "admin", True)):
        text = environment.get(name)
        if text is None:
            continue
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(f"{name} must be a key: printable ASCII without spaces, not empty; or unset it")
        keys.append(Key.of(text, tenant, is_admin))
    return keys


def append_key(path: Path, key: Key) -> None:
    """Add a key to a file, which is made for its owner alone if it is not there.

    Raises:
        ConfigError: it holds something else than keys, or cannot be written.
    """
    if path.exists():
        read_keys(path)
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            size = os.fstat(handle).st_size
            ended = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
            file.write(f"{'' if ended else chr(10)}{key.line}\n".encode())
    except OSError as error:
        raise ConfigError(f"cannot add a key to {str(path)!r}: {_reason(error)}") from error


def server_secret() -> bytes:
    """What this user's servers derive cache salts from: made once, in ``server/secret`` of the cache, owner only.

    Raises:
        ConfigError: others may read it, it is damaged, or it cannot be made.
    """
    path = user_cache() / "server" / "secret"
    try:
        if not path.exists():
            _create(path)
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"others may read {str(path)!r}, which keeps tenants' caches apart: delete it, and a new one is made"
            )
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot keep the server's secret in {str(path)!r}: {_reason(error)}") from error
    if len(secret) != _SECRET_BYTES:
        raise ConfigError(f"{str(path)!r} is not a server's secret; delete it, and a new one is made")
    return secret


def _create(path: Path) -> None:
    """Whole or not at all, and of several servers that begin at once the first decides."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()


def _groups(share_cache: Iterable[str], tenants: Set[str]) -> dict[str, str]:
    """The name of the group of each tenant that is in one. It is no tenant's name, and another one when the group gets
    other members: nobody finds then what was cached for those that were in it.
    """
    found: dict[str, str] = {}
    for group in share_cache:
        members = _members(group, tenants)
        for tenant in members:
            if tenant in found:
                raise ConfigError(f"tenant {tenant!r} shares its cache in two groups; name it in one of them")
            found[tenant] = _EVERYBODY if group.strip() == _EVERYBODY else ",".join(sorted(members))
    return found


def _members(group: str, tenants: Set[str]) -> Set[str]:
    if group.strip() == _EVERYBODY:
        return tenants
    names = [name.strip() for name in group.split(",")]
    for name in names:
        if name not in tenants:
            raise ConfigError(
                f"a group that shares its cache has tenants with a key: {', '.join(sorted(tenants))}, or * for all of "
                f"them; got {shown(name)} in {shown(group)}"
            )
    if len(names) < 2:
        raise ConfigError(f"a group that shares its cache has at least two tenants; got {shown(group)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"a tenant is named twice in {shown(group)}")
    return set(names)


def _read_line(words: list[str], where: str) -> Key:
    digest = _DIGEST.fullmatch(words[1]) if len(words) in (2, 3) else None
    if digest is None or _TENANT.fullmatch(words[0]) is None or words[2:] not in ([], ["admin"]):
        raise ConfigError(f"{where} is not TENANT sha256:HEX [admin]; octavo key TENANT --file FILE writes such a line")
    return Key(words[0], bytes.fromhex(digest.group(1)), bool(words[2:]))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
