"""StoredPrefixes: what is stored, as beginnings of prompts; what they share, and what a pin holds."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier_blocks import digest, origin

from octavo.errors import InvalidRequestError
from octavo.tiers.base import BlockKey, Origin
from octavo.tiers.contents import Place, StoredBlock
from octavo.tiers.prefixes import Prefix, StoredPrefixes

SLOT = 8192
OURS = origin()


def stored(
    name: str, after: str | None = None, *, group: int = 0, of: Origin = OURS, used: float = 0.0, pinned: bool = False
) -> StoredBlock:
    parent = of.root if after is None else digest(after)
    return StoredBlock(BlockKey(digest(name), group), Place(SLOT, 0), of, parent, 16, used, pinned)


def chain(*names: str, **facts) -> list[StoredBlock]:
    return [stored(name, before, **facts) for name, before in zip(names, (None, *names), strict=False)]


def by_name(blocks: list[StoredBlock], *names: str) -> dict[str, Prefix]:
    found = {prefix.block_hash: prefix for prefix in StoredPrefixes(blocks).newest_first()}
    assert set(found) == {digest(name) for name in names}
    return {name: found[digest(name)] for name in names}


def id_of(name: str) -> str:
    return digest(name).hex()[:12]


def hashes(blocks: list[StoredBlock]) -> set[bytes]:
    return {block.key.block_hash for block in blocks}


def of_names(*names: str) -> set[bytes]:
    return {digest(name) for name in names}


def test_every_block_that_none_follows_is_the_end_of_a_prefix():
    blocks = [*chain("a", "b", "c"), stored("d", "b", used=5.0), stored("x")]
    found = by_name(blocks, "c", "d", "x")
    assert {name: (p.num_tokens, p.num_blocks, p.num_bytes) for name, p in found.items()} == {
        "c": (48, 3, 3 * SLOT),
        "d": (48, 3, 3 * SLOT),
        "x": (16, 1, SLOT),
    }
    assert {name: p.num_shared_bytes for name, p in found.items()} == {"c": 2 * SLOT, "d": 2 * SLOT, "x": 0}
    assert all(p.is_whole for p in found.values())
    assert StoredPrefixes(blocks).newest_first()[0] == found["d"]
    assert found["c"].id == id_of("c")


def test_a_prefix_whose_beginning_is_gone_is_not_whole():
    (found,) = by_name(chain("a", "b", "c")[1:], "c").values()
    assert not found.is_whole and found.num_tokens == 32


def test_all_layer_groups_count_and_a_window_may_have_lost_its_first_blocks():
    full, windowed = chain("a", "b", "c"), chain("a", "b", "c", group=1)
    assert by_name([*full, *windowed], "c")["c"].num_blocks == 6
    without_first = by_name([*full, *windowed[1:]], "c")["c"]
    assert without_first.is_whole and (without_first.num_tokens, without_first.num_blocks) == (48, 5)
    assert not by_name([*full, *windowed[:-1]], "c")["c"].is_whole
    assert not by_name([*full[1:], *windowed[:1], windowed[2]], "c")["c"].is_whole


def test_groups_of_another_model_are_not_asked_for():
    other = origin("other")
    blocks = [*chain("a", "b"), *chain("x", of=other), *chain("x", of=other, group=1)]
    assert all(prefix.is_whole for prefix in by_name(blocks, "b", "x").values())


def test_a_pinned_beginning_is_a_prefix_of_its_own():
    blocks = [*chain("a", "b", pinned=True), stored("c", "b"), stored("d", "b")]
    found = by_name(blocks, "b", "c", "d")
    assert {name: p.is_pinned for name, p in found.items()} == {"b": True, "c": False, "d": False}


def test_unpinning_ends_where_another_pinned_prefix_goes_on():
    blocks = [*chain("a", "b", "c", pinned=True), stored("d", "b", pinned=True), stored("e", "b")]
    prefixes = StoredPrefixes(blocks)
    assert hashes(prefixes.blocks_to_unpin([id_of("c")])) == of_names("c")
    assert hashes(prefixes.blocks_to_unpin([id_of("c"), id_of("d")])) == of_names("a", "b", "c", "d")
    assert prefixes.blocks_to_unpin([id_of("e")]) == []


def test_what_only_the_chosen_prefixes_have_is_told_from_what_others_share():
    blocks = [*chain("a", "b", "c"), stored("d", "b"), stored("e", "a")]
    prefixes = StoredPrefixes(blocks)
    assert hashes(prefixes.blocks_of([id_of("c")])) == of_names("a", "b", "c")
    assert hashes(prefixes.blocks_of_none_but([id_of("c")])) == of_names("c")
    assert hashes(prefixes.blocks_of_none_but([id_of("c"), id_of("d"), id_of("d")])) == of_names("b", "c", "d")
    assert hashes(prefixes.blocks_of_none_but(map(id_of, "cde"))) == of_names(*"abcde")


def test_a_prefix_is_found_by_a_beginning_of_its_hash_that_no_other_has():
    blocks = [block for n in range(40) for block in chain(f"n{n}")]
    prefixes = StoredPrefixes(blocks)
    whole = digest("n7").hex()
    assert prefixes.find(whole) == prefixes.find(whole[:12]) == prefixes.find(whole[:12].upper())
    with pytest.raises(InvalidRequestError, match="no stored prefix has the id 'ffff'"):
        prefixes.find("ffff")
    with pytest.raises(InvalidRequestError, match="no stored prefix has the id ''"):
        prefixes.find("")
    first = Counter(block.key.block_hash.hex()[0] for block in blocks).most_common(1)[0][0]
    with pytest.raises(
        InvalidRequestError, match=rf"the ids of \d+ stored prefixes begin with '{first}': .*more digits"
    ):
        prefixes.find(first)


def test_parents_in_a_ring_that_damage_made_end_nothing():
    ring = [stored("a", "c"), stored("b", "a"), stored("c", "b"), stored("tail", "b"), stored("self", "self")]
    found = StoredPrefixes(ring).newest_first()
    assert {digest("tail"), digest("self")} <= {prefix.block_hash for prefix in found}
    assert not any(prefix.is_whole for prefix in found)
    assert hashes(StoredPrefixes(ring).blocks_of([prefix.id for prefix in found])) == of_names(
        "a", "b", "c", "tail", "self"
    )


@given(parents=st.lists(st.integers(0, 30), min_size=1, max_size=60), pins=st.sets(st.integers(0, 59)))
@settings(max_examples=60)
def test_in_any_tree_prefixes_cover_all_blocks_and_unpinning_all_leaves_no_pin(parents: list[int], pins: set[int]):
    blocks = [
        stored(f"n{index}", f"n{parent - 1}" if 0 < parent <= index else None, pinned=index in pins)
        for index, parent in enumerate(parents)
    ]
    prefixes = StoredPrefixes(blocks)
    found = prefixes.newest_first()
    ids = [prefix.block_hash.hex() for prefix in found]
    assert hashes(prefixes.blocks_of(ids)) == hashes(blocks) == hashes(prefixes.blocks_of_none_but(ids))
    assert sum(p.num_bytes - p.num_shared_bytes for p in found) <= len(blocks) * SLOT
    for each in found:
        own = [prefixes.blocks_of_none_but([each.block_hash.hex()])]
        assert len(own[0]) * SLOT == each.num_bytes - each.num_shared_bytes
    while pinned := [block for block in blocks if block.pinned]:
        ends = [p.block_hash.hex() for p in StoredPrefixes(blocks).newest_first()]
        for block in StoredPrefixes(blocks).blocks_to_unpin(ends):
            block.pinned = False
        assert len([block for block in blocks if block.pinned]) < len(pinned)


def test_one_chain_of_many_blocks_and_many_behind_one_take_no_more_than_their_number():
    def seconds(num: int) -> float:
        long = chain(*(f"l{n}" for n in range(num)))
        wide = [stored(f"w{n}", "l9") for n in range(num)]
        began = time.process_time()
        StoredPrefixes(long + wide).newest_first()
        return time.process_time() - began

    seconds(1_000)
    assert seconds(40_000) < 100 * seconds(2_000) + 1.0  # in proportion: 20 x; with the square: 400 x
