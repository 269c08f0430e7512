"""docs/kv-formats.md: its tables are what the code says."""

from __future__ import annotations

import re

from doc_tables import quoted, table

from octavo.formats.kv_format import CODECS, KV_DTYPES

PAGE = "docs/kv-formats.md"


def test_every_kv_dtype_is_listed_with_the_bits_of_its_keys_and_values() -> None:
    rows = table(PAGE, "# KV formats", ("`kv_dtype`", "Keys", "Values", "For"))
    found = {quoted(name)[0]: (keys, values) for name, keys, values, _ in rows}
    assert quoted(found.pop("KEY:VALUE")[0]) == list(CODECS)
    assert found == {
        name: (f"{CODECS[each.key].BITS} bits", f"{CODECS[each.value].BITS} bits") for name, each in KV_DTYPES.items()
    }


def test_the_bytes_per_token_are_those_of_the_formats() -> None:
    rows = table(PAGE, "## Bytes per token", ("Model", *(f"`{name}`" for name in KV_DTYPES)))
    assert len(rows) == 4
    for model, *sizes in rows:
        layers, kv_heads, head_dim = map(int, re.findall(r"(\d+) layers, (\d+) KV heads, head_dim (\d+)", model)[0])
        wanted = [layers * kv_heads * each.bytes_per_token(head_dim) for each in KV_DTYPES.values()]
        assert [int(size.replace(",", "")) for size in sizes] == wanted


def test_the_bits_for_each_number_include_its_scales() -> None:
    columns = ("Codec", "Codes", "Scales", "A number is", "Bits for each, at a head_dim of 64")
    found = {quoted(name)[0]: float(bits) for name, *_, bits in table(PAGE, "## What each one is", columns)}
    assert found == {name: (each.code_bytes(64) + each.scale_bytes(64)) * 8 / 64 for name, each in CODECS.items()}
