"""KV formats by name, and the bytes that were published for them."""

from __future__ import annotations

import itertools

import pytest

from octavo.formats.kv_format import CODECS, KV_DTYPES, KVFormat, layer_formats, parse_kv_dtype


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("bf16", "bf16", "bf16"),
        ("int8", "int8", "int8"),
        ("fp8", "fp8", "fp8"),
        ("int4", "int8", "int4"),
        ("int4-full", "int4", "int4"),
        ("int8:fp8", "int8", "fp8"),
        ("bf16:int4", "bf16", "int4"),
    ],
)
def test_a_name_says_how_keys_and_values_are_stored(text, key, value):
    assert parse_kv_dtype(text) == KVFormat(key, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int3",
        "INT8",
        " int8",
        "int8:",
        ":int8",
        ":",
        "int8:int8:int8",
        "int4-full:int8",
        "int8:int4-full",
        "int8;fp8",
    ],
)
def test_what_is_no_format_is_refused_with_all_there_are(text):
    with pytest.raises(
        ValueError, match="one of bf16, int8, fp8, int4, int4-full, or KEY:VALUE with each of bf16, int8"
    ):
        parse_kv_dtype(text)


def test_a_format_is_named_as_short_as_it_can_be_and_its_name_means_it():
    for key, value in itertools.product(CODECS, repeat=2):
        kv_format = KVFormat(key, value)
        assert parse_kv_dtype(str(kv_format)) == kv_format
    assert [str(kv_format) for kv_format in KV_DTYPES.values()] == list(KV_DTYPES)
    assert str(parse_kv_dtype("int8:int4")) == "int4"
    assert str(parse_kv_dtype("fp8:int8")) == "fp8:int8"


@pytest.mark.parametrize(
    ("layers", "heads", "head_dim", "published"),
    [
        (32, 8, 128, (131072, 66560, 66560, 53760, 40960)),
        (16, 8, 64, (32768, 16896, 16896, 13568, 10240)),
        (28, 8, 128, (114688, 58240, 58240, 47040, 35840)),
    ],
    ids=["Llama-3.1-8B", "Llama-3.2-1B", "Qwen3-0.6B"],
)
def test_bytes_per_token_are_the_published_ones(layers, heads, head_dim, published):
    found = [layers * heads * kv_format.bytes_per_token(head_dim) for kv_format in KV_DTYPES.values()]
    assert tuple(found) == published


def test_keys_in_4_bits_are_gated_and_nothing_else_is():
    gated = {str(f) for f in itertools.starmap(KVFormat, itertools.product(CODECS, repeat=2)) if f.is_gated}
    assert gated == {"int4-full", "int4:bf16", "int4:int8", "int4:fp8"}


def test_a_head_dim_must_be_a_multiple_of_what_both_codecs_need():
    assert {str(f): f.head_dim_step for f in KV_DTYPES.values()} == {
        "bf16": 16,
        "int8": 16,
        "fp8": 16,
        "int4": 32,
        "int4-full": 32,
    }


def test_layers_kept_at_8_bits_have_int8_in_place_of_int4():
    formats = layer_formats(parse_kv_dtype("int4-full"), 4, (0, 3))
    assert [str(f) for f in formats] == ["int8", "int4-full", "int4-full", "int8"]
    assert [str(f) for f in layer_formats(parse_kv_dtype("fp8:int4"), 2, [1])] == ["fp8:int4", "fp8:int8"]
    assert [str(f) for f in layer_formats(parse_kv_dtype("fp8"), 2, [0, 1])] == ["fp8", "fp8"]
    assert len(layer_formats(KV_DTYPES["bf16"], 3)) == 3
