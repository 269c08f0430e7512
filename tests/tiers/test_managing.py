"""Managing: whose blocks are meant, what is pinned, and what is cleared is gone from the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_blocks import block, data_of, open_tier, origin, slabs, store

from octavo.errors import InvalidRequestError
from octavo.tiers import managing
from octavo.tiers.base import tenant_digest
from octavo.tiers.disk import DiskTier
from octavo.tiers.managing import Choice

ALICE = origin(tenant=b"alice's salt")
SHARED = [block(n) for n in range(3)]
OTHERS = [block(n, "other") for n in range(2)]
HERS = [block(n, of=ALICE) for n in range(4)]


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    opened = open_tier(tmp_path / "kv")
    store(opened, *SHARED, *OTHERS, *HERS)
    yield opened
    opened.close()


def id_of(chain: list) -> str:
    return chain[-1].key.block_hash.hex()[:12]


def ids(tier: DiskTier, choice: Choice = Choice()) -> set[str]:  # noqa: B008
    return {prefix["id"] for prefix in managing.list_prefixes(tier.folder, choice)["prefixes"]}


def test_prefixes_are_listed_of_those_that_are_meant(tier: DiskTier):
    hers = tenant_digest(b"alice's salt").hex()
    assert ids(tier) == {id_of(SHARED), id_of(OTHERS), id_of(HERS)}
    assert ids(tier, Choice(tenant=hers)) == ids(tier, Choice(tenant=hers[:5])) == {id_of(HERS)}
    assert ids(tier, Choice(tenant="0" * 64)) == {id_of(SHARED), id_of(OTHERS)}
    assert ids(tier, Choice(model="model")) == ids(tier, Choice(model="model bf16")) == ids(tier)
    assert ids(tier, Choice(model="mod")) == ids(tier, Choice(model="model bf1")) == set()


def test_usage_is_that_of_the_folder_and_of_each_tenant(tier: DiskTier):
    found = managing.usage(tier.folder, 2**30)
    assert (found["num_blocks"], found["num_bytes"], found["num_pinned"]) == (9, 9 * 8192, 0)
    assert found["num_file_bytes"] == tier.folder.num_bytes and found["limit"] == 2**30
    assert [(part["label"], part["num_blocks"]) for part in found["models"]] == [("model bf16", 9)]
    assert [(part["tenant"], part["num_blocks"]) for part in found["tenants"]] == [
        ("0" * 64, 5),
        (tenant_digest(b"alice's salt").hex(), 4),
    ]


def test_pins_outlive_the_process_and_are_undone(tier: DiskTier, tmp_path: Path):
    assert managing.pin(tier.folder, [id_of(SHARED), id_of(HERS)]) == {"num_blocks": 7, "num_changed": 7}
    assert managing.pin(tier.folder, [id_of(HERS)]) == {"num_blocks": 4, "num_changed": 0}
    tier.close()
    again = open_tier(tmp_path / "kv")
    listed = managing.list_prefixes(again.folder, Choice())
    assert {prefix["id"] for prefix in listed["prefixes"] if prefix["is_pinned"]} == {id_of(SHARED), id_of(HERS)}
    assert managing.unpin(again.folder, [id_of(SHARED)]) == {"num_blocks": 3, "num_changed": 3}
    assert again.folder.num_pinned == 4
    again.close()


def test_blocks_are_pinned_by_their_hashes(tier: DiskTier):
    assert managing.pin_blocks(tier.folder, [each.key.block_hash for each in SHARED[:2]]) == 2
    assert tier.folder.num_pinned == 2


def test_what_a_tenant_had_is_not_in_the_files_any_more_once_it_is_cleared(tier: DiskTier, tmp_path: Path):
    hers = Choice(tenant=tenant_digest(b"alice's salt").hex())
    wanted = {"num_blocks": 4, "num_bytes": 4 * 8192, "num_pinned": 0}
    assert managing.clear(tier.folder, [], hers, dry_run=True) == wanted
    assert len(tier.folder) == 9
    assert managing.clear(tier.folder, [], hers) == wanted
    assert ids(tier) == {id_of(SHARED), id_of(OTHERS)}
    files = b"".join(path.read_bytes() for path in slabs(tmp_path / "kv"))
    assert not any(data_of(each)[:64] in files for each in HERS)
    assert all(data_of(each)[:64] in files for each in SHARED)


def test_a_prefix_is_cleared_but_for_what_others_begin_with(tier: DiskTier):
    branch = block(3, "a")
    store(tier, branch)
    other = block(9, "z")
    store(tier, other)
    assert managing.clear(tier.folder, [id_of([branch])], Choice())["num_blocks"] == 4
    assert ids(tier) == {id_of(OTHERS), id_of(HERS), id_of([other])}
    assert managing.clear(tier.folder, [], Choice())["num_blocks"] == 7
    assert len(tier.folder) == 0


def test_ids_and_a_choice_together_are_refused_and_so_is_an_unknown_id(tier: DiskTier):
    with pytest.raises(InvalidRequestError, match="give no tenant or model with them"):
        managing.clear(tier.folder, [id_of(HERS)], Choice(model="model"))
    with pytest.raises(InvalidRequestError, match="no stored prefix has the id 'zz'"):
        managing.clear(tier.folder, ["zz"], Choice())
    with pytest.raises(InvalidRequestError, match="no stored prefix has the id 'zz'"):
        managing.pin(tier.folder, [id_of(HERS), "zz"])
    assert len(tier.folder) == 9 and tier.folder.num_pinned == 0
