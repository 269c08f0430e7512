"""Whose stored blocks are meant: from a tenant's name to what stands for it on the disk."""

from __future__ import annotations

import re

from octavo.errors import ConfigError, shown
from octavo.server.keys import KeyRing, cache_salt, check_tenant, server_secret
from octavo.tiers.base import tenant_digest
from octavo.tiers.managing import Choice

_EVERYBODY = "*"
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{1,64})")


def salt_of(tenant: str, keys: KeyRing | None) -> bytes:
    """The cache salt of a tenant, of tenants that share their cache (``"alice,bob"``, or ``"*"``), or, for an empty
    name, that of a server without keys: none.

    Args:
        keys: of the server that is asked; ``None``: it has none, or no server runs. Then tenants are those that this
            user's servers have.

    Raises:
        ConfigError: that is no tenant's name, or the secret that salts are derived from cannot be read.
    """
    if not tenant:
        return b""
    name = tenant.strip()
    if name != _EVERYBODY:
        name = ",".join(sorted(check_tenant(part.strip()) for part in name.split(",")))
    return cache_salt(server_secret(), name) if keys is None else keys.salt_of(name)


def choice_of(tenant: str | None, model: str | None, keys: KeyRing | None) -> Choice:
    """The blocks that an administrator means.

    Args:
        tenant: as :func:`salt_of` has it, or ``sha256:`` with the first digits of what stands for it on the disk;
            ``None``: all tenants'.
        model: a label, or its first words; ``None``: all models'.
        keys: as :func:`salt_of` has it.

    Raises:
        ConfigError: as :func:`salt_of`.
    """
    if tenant is None:
        return Choice(None, model)
    if tenant.startswith("sha256:"):
        found = _DIGEST.fullmatch(tenant)
        if found is None:
            raise ConfigError(f"a tenant's digest is sha256: and up to 64 hexadecimal digits; got {shown(tenant)}")
        return Choice(found[1].lower(), model)
    return Choice(tenant_digest(salt_of(tenant, keys)).hex(), model)
