"""A record is believed only if it is whole, and what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tier_blocks import BLOCK_SIZE, block, data_of

from octavo.tiers.base import BlockKey
from octavo.tiers.record import (
    ForeignRecordError,
    RecordError,
    check,
    header_bytes,
    is_of,
    read_header,
    slot_bytes,
    write_header,
)

CONTENT = block(3, group=2)
DATA = data_of(CONTENT)


def record(content=CONTENT, data: bytes = DATA) -> tuple[bytearray, bytearray]:
    header = bytearray(header_bytes(len(content.token_ids)))
    write_header(header, content, memoryview(data))
    return header, bytearray(data)


def test_a_record_says_what_it_is():
    header, data = record()
    assert check(header, memoryview(data)) == CONTENT
    assert read_header(header) == (CONTENT, len(DATA))


@given(st.data())
def test_no_bit_of_it_can_change_unnoticed(data):
    header, body = record()
    position = data.draw(st.integers(0, len(header) + len(body) - 1))
    part, index = (header, position) if position < len(header) else (body, position - len(header))
    part[index] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((RecordError, ForeignRecordError)):
        check(header, memoryview(body))


@given(st.binary(max_size=header_bytes(BLOCK_SIZE)))
def test_no_bytes_are_more_than_a_record_or_a_refusal(junk):
    header, body = record()
    header[: len(junk)] = junk
    with pytest.raises((RecordError, ForeignRecordError)):
        check(header, memoryview(body))
        assert junk == bytes(record()[0][: len(junk)])
        raise RecordError("the same bytes")


def test_another_version_is_foreign_and_no_damage():
    header, body = record()
    header[8] = 2
    with pytest.raises(ForeignRecordError, match="version 2"):
        check(header, memoryview(body))


@pytest.mark.parametrize(
    "other",
    [
        replace(CONTENT, token_ids=(*CONTENT.token_ids[:-1], 7)),
        replace(CONTENT, parent_hash=bytes(32)),
        replace(CONTENT, key=BlockKey(bytes(32), 2)),
        replace(CONTENT, key=BlockKey(CONTENT.key.block_hash, 1)),
        replace(CONTENT, origin=replace(CONTENT.origin, root=bytes(32))),
    ],
)
def test_a_record_is_that_of_its_tokens_parent_hash_group_and_root_alone(other):
    assert is_of(check(*record()), CONTENT)
    assert not is_of(check(*record()), other)


def test_the_label_is_for_people_and_cut_where_a_character_ends():
    named = replace(CONTENT, origin=replace(CONTENT.origin, label="é" * 60))
    found = check(*record(named))
    assert found.origin.label == "é" * 32
    assert is_of(found, CONTENT)


def test_what_cannot_be_written_down_is_refused():
    with pytest.raises(ValueError, match="bytes long"):
        write_header(bytearray(100), CONTENT, memoryview(DATA))
    with pytest.raises(ValueError, match="hashes are 32 bytes"):
        record(replace(CONTENT, parent_hash=b"short"))


@given(st.integers(1, 10**7), st.sampled_from([16, 48, 1024]))
def test_a_slot_is_whole_pages_and_has_room_for_header_and_block(block_bytes, block_size):
    size = slot_bytes(block_bytes, block_size)
    assert size % 4096 == 0 and 0 <= size - header_bytes(block_size) - block_bytes < 4096
    assert header_bytes(block_size) % 64 == 0
