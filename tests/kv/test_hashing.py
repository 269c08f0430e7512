"""The namespace and the hash chain: what makes two blocks the same."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import struct
import subprocess
import sys
from pathlib import Path

import octavo.kv.hashing
from octavo.kv.hashing import BlockHash, Namespace, hash_block

NAMESPACE = Namespace(
    weights_digest=b"weights",
    spec_digest=b"spec",
    kv_formats=("bf16", "int8"),
    block_size=16,
    layout_version=1,
    numerics_id="avx2-0123",
    cache_salt=b"tenant",
)
ROOT = BlockHash(bytes(32))


def test_hash_is_sha256_over_parent_and_little_endian_int32():
    tokens = [0, 1, 49151, 2**31 - 1]
    first = hashlib.sha256(bytes(32) + b"".join(struct.pack("<i", token) for token in tokens)).digest()
    second = hashlib.sha256(first + struct.pack("<i", 7)).digest()
    assert hash_block(ROOT, tokens) == first
    assert hash_block(BlockHash(first), [7]) == second
    assert hash_block(ROOT, [1]).hex() == hashlib.sha256(bytes(32) + b"\x01\0\0\0").hexdigest()


def test_root_is_sha256_over_tagged_and_length_prefixed_fields():
    def prefixed(data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data

    fields = [
        (b"weights_digest", b"weights"),
        (b"spec_digest", b"spec"),
        (b"kv_formats", prefixed(b"bf16") + prefixed(b"int8")),
        (b"block_size", b"16"),
        (b"layout_version", b"1"),
        (b"numerics_id", b"avx2-0123"),
        (b"cache_salt", b"tenant"),
    ]
    expected = hashlib.sha256(b"".join(prefixed(tag) + prefixed(value) for tag, value in fields)).digest()
    assert NAMESPACE.root() == expected


def test_hashes_are_the_same_in_every_process():
    program = (
        "from octavo.kv.hashing import *\n"
        f"print(hash_block({NAMESPACE!r}.root(), (1, 2, 3)).hex())\n"
        "print(hash('not the same in every process'))"
    )
    source = str(Path(octavo.kv.hashing.__file__).parents[2])
    outputs = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
        command = [sys.executable, "-c", program]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True))
    first, second = (output.stdout.split() for output in outputs)
    assert first[0] == second[0] == hash_block(NAMESPACE.root(), (1, 2, 3)).hex()
    assert first[1] != second[1]


def test_every_field_of_the_namespace_changes_the_root():
    changed = {
        "weights_digest": b"other",
        "spec_digest": b"other",
        "kv_formats": ("bf16", "bf16"),
        "block_size": 32,
        "layout_version": 2,
        "numerics_id": "generic-0123",
        "cache_salt": b"",
    }
    assert set(changed) == {field.name for field in dataclasses.fields(Namespace)}
    roots = {dataclasses.replace(NAMESPACE, **{name: value}).root() for name, value in changed.items()}
    assert len(roots | {NAMESPACE.root()}) == len(changed) + 1


def test_bytes_moved_across_adjacent_fields_do_not_collide():
    names = [field.name for field in dataclasses.fields(Namespace)]
    before_and_after = {
        bytes: (b"ab", b"c", b"a", b"bc"),
        str: ("ab", "c", "a", "bc"),
        int: (12, 3, 1, 23),
        tuple: (("ab",), ("c",), ("a",), ("bc",)),
    }
    for left, right in itertools.pairwise(names):
        left_values = before_and_after[type(getattr(NAMESPACE, left))]
        right_values = before_and_after[type(getattr(NAMESPACE, right))]
        one = dataclasses.replace(NAMESPACE, **{left: left_values[0], right: right_values[1]})
        other = dataclasses.replace(NAMESPACE, **{left: left_values[2], right: right_values[3]})
        assert one.root() != other.root(), (left, right)


def test_names_moved_across_adjacent_layers_do_not_collide():
    formats = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc")]
    assert len({dataclasses.replace(NAMESPACE, kv_formats=each).root() for each in formats}) == len(formats)


def test_a_hash_depends_on_every_token_before_it():
    first, changed = hash_block(ROOT, [1, 2]), hash_block(ROOT, [1, 3])
    assert hash_block(first, [4, 5]) != hash_block(changed, [4, 5])
    assert hash_block(first, [4, 5]) != hash_block(first, [5, 4])
    assert hash_block(first, [4]) != hash_block(first, [4, 0])
