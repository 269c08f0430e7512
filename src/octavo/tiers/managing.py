"""Managing a folder's blocks: what is there, whose it is, and what of it is kept or cleared.

What these return is plain: it is printed as JSON, or sent as that, as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.tiers.base import BlockKey, Origin
from octavo.tiers.contents import StoredBlock
from octavo.tiers.folder import TierFolder
from octavo.tiers.prefixes import Prefix, StoredPrefixes


@dataclass(frozen=True, slots=True)
class Choice:
    """Blocks by whose they are; of everybody and every model where nothing is said.

    Attributes:
        tenant: first hexadecimal digits of their tenant's digest.
        model: their label, or its first words.
    """

    tenant: str | None = None
    model: str | None = None

    def __contains__(self, origin: Origin) -> bool:
        """Whether blocks of this origin are meant."""
        by_tenant = self.tenant is None or origin.tenant.hex().startswith(self.tenant)
        by_model = self.model is None or f"{origin.label} ".startswith(f"{self.model} ")
        return by_tenant and by_model


def list_prefixes(folder: TierFolder, choice: Choice) -> dict[str, Any]:
    """The prefixes that are meant, the one first that was used last; in the sums each block counts once."""
    blocks = [block for block in folder.blocks() if block.origin in choice]
    return {
        "folder": str(folder.path),
        "prefixes": [_described(prefix) for prefix in StoredPrefixes(blocks).newest_first()],
        **_sums(blocks),
    }


def usage(folder: TierFolder, limit: int | None) -> dict[str, Any]:
    """What the folder's files take, and whose the blocks are. ``limit``: of the files, if there is one."""
    blocks = folder.blocks()
    used = [block.used for block in blocks]
    return {
        "folder": str(folder.path),
        "num_file_bytes": folder.num_bytes,
        "limit": limit,
        **_sums(blocks),
        "oldest_use": min(used, default=None),
        "newest_use": max(used, default=None),
        "models": _by(blocks, lambda origin: {"label": origin.label, "model": origin.model.hex()}),
        "tenants": _by(blocks, lambda origin: {"tenant": origin.tenant.hex()}),
    }


def pin(folder: TierFolder, ids: Sequence[str]) -> dict[str, int]:
    """Keep these prefixes, all of their blocks, whatever comes.

    Raises:
        InvalidRequestError: an id is unknown, or that of several.
        OSError: the index cannot be changed.
    """
    return _changed(folder, StoredPrefixes(folder.blocks()).blocks_of(ids), pinned=True)


def unpin(folder: TierFolder, ids: Sequence[str]) -> dict[str, int]:
    """Have these prefixes go as others do. What another pinned one begins with stays pinned. Raises as :func:`pin`."""
    return _changed(folder, StoredPrefixes(folder.blocks()).blocks_to_unpin(ids), pinned=False)


def clear(folder: TierFolder, ids: Sequence[str], choice: Choice, *, dry_run: bool = False) -> dict[str, int]:
    """Forget what these prefixes have and no others do; or, without ``ids``, all that is meant by ``choice``. Pinned or
    not. ``dry_run``: nothing goes; says what would.

    Raises:
        InvalidRequestError: an id is unknown, or that of several; or both were given.
        OSError: not all of it could be overwritten.
    """
    if ids and choice != Choice():
        raise InvalidRequestError("ids say by themselves what to clear; give no tenant or model with them", param="ids")
    if ids:
        blocks = StoredPrefixes(folder.blocks()).blocks_of_none_but(ids)
    else:
        blocks = [block for block in folder.blocks() if block.origin in choice]
    if not dry_run:
        keys = {block.key for block in blocks}
        folder.clear(lambda block: block.key in keys)
    return _sums(blocks)


def pin_blocks(folder: TierFolder, block_hashes: Iterable[bytes]) -> int:
    """Pin the blocks of these hashes, of all layer groups, and say how many they are. Raises OSError as :func:`pin`."""
    wanted = set(block_hashes)
    keys = [block.key for block in folder.blocks() if block.key.block_hash in wanted]
    return folder.set_pinned(keys, True)


def _changed(folder: TierFolder, blocks: list[StoredBlock], *, pinned: bool) -> dict[str, int]:
    keys: list[BlockKey] = [block.key for block in blocks if block.pinned is not pinned]
    folder.set_pinned(keys, pinned)
    return {"num_blocks": len(blocks), "num_changed": len(keys)}


def _described(prefix: Prefix) -> dict[str, Any]:
    return {
        "id": prefix.id,
        "hash": prefix.block_hash.hex(),
        "label": prefix.origin.label,
        "tenant": prefix.origin.tenant.hex(),
        "num_tokens": prefix.num_tokens,
        "num_blocks": prefix.num_blocks,
        "num_bytes": prefix.num_bytes,
        "num_shared_bytes": prefix.num_shared_bytes,
        "used": prefix.used,
        "is_pinned": prefix.is_pinned,
        "is_whole": prefix.is_whole,
    }


def _sums(blocks: Sequence[StoredBlock]) -> dict[str, int]:
    return {
        "num_blocks": len(blocks),
        "num_bytes": sum(block.place.slot_bytes for block in blocks),
        "num_pinned": sum(block.pinned for block in blocks),
    }


def _by(blocks: Iterable[StoredBlock], names: Callable[[Origin], dict[str, str]]) -> list[dict[str, Any]]:
    """The sums of each, the one first that takes most."""
    parts: dict[tuple[str, ...], list[StoredBlock]] = {}
    for block in blocks:
        parts.setdefault(tuple(names(block.origin).values()), []).append(block)
    found = [
        {**names(part[0].origin), **_sums(part), "newest_use": max(block.used for block in part)}
        for part in parts.values()
    ]
    return sorted(found, key=lambda part: part["num_bytes"], reverse=True)
