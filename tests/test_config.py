"""EngineConfig: an invalid one cannot be made, and what is wrong is said by name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from octavo import LLM
from octavo.config import EngineConfig, parse_bytes, user_cache
from octavo.errors import ConfigError, shown
from octavo.formats.kv_format import KV_DTYPES, parse_kv_dtype


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        ("1", 1),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        (" 7 b ", 7),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(size: int | str, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    "size",
    ["", "MiB", "-1", "1e9", "1,5 GiB", "12 parsecs", "0", 0, -5, True, 1.5, None, 2**63, "8388608 TiB", "9" * 5000],
)
def test_what_is_no_size_is_refused_with_what_was_given(size: object) -> None:
    with pytest.raises(ConfigError, match="size") as refused:
        parse_bytes(size)  # type: ignore[arg-type]
    assert shown(size) in str(refused.value)


OUT_OF_RANGE = [
    ("block_size", 0),
    ("block_size", 24),
    ("block_size", 1040),
    ("block_size", 16.0),
    ("kv_memory_share", 0),
    ("kv_memory_share", 1),
    ("kv_memory_share", math.nan),
    ("kv_memory_share", "half"),
    ("retention_budget", -0.1),
    ("retention_budget", 1.1),
    ("retention_budget", math.nan),
    ("retention_budget", True),
    ("retention_budget", "half"),
    ("max_model_len", 0),
    ("max_model_len", 2**31),
    ("max_num_seqs", 0),
    ("max_num_seqs", 4097),
    ("max_num_batched_tokens", 0),
    ("max_num_batched_tokens", 2**16 + 1),
    ("enable_prefix_caching", "yes"),
    ("kv_dtype", "int3"),
    ("kv_dtype", "int8:"),
    ("kv_dtype", "int8:int4-full"),
    ("kv_dtype", None),
    ("kv_8bit_layers", 3),
    ("kv_8bit_layers", "0"),
    ("kv_8bit_layers", {0}),
    ("kv_8bit_layers", b"01"),
    ("kv_quality_gate", "no"),
    ("kv_quality_gate", 1),
    ("threads", 0),
    ("threads", 257),
    ("threads", True),
    ("seed", -1),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_field_out_of_range_is_refused_by_name_with_what_was_given(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("layers", "shown_layer"), [([0, -1], "-1"), ([True], "True"), ([0.5], "0.5"), (["a"], "'a'")])
def test_what_is_no_layer_is_refused_with_what_was_given(layers: list[object], shown_layer: str) -> None:
    with pytest.raises(ConfigError, match="a layer in kv_8bit_layers must be a whole number from 0") as refused:
        EngineConfig(kv_8bit_layers=layers)  # type: ignore[arg-type]
    assert str(refused.value).endswith(f"got {shown_layer}")


def test_layers_that_keep_8_bits_are_a_set_in_order() -> None:
    given = [3, 0, 3]
    config = EngineConfig(kv_dtype="int4", kv_8bit_layers=given)
    given.append(7)
    assert config.kv_8bit_layers == (0, 3)
    assert config == EngineConfig(kv_dtype="int4", kv_8bit_layers=(0, 3))
    assert hash(config) == hash(EngineConfig(kv_dtype="int4", kv_8bit_layers=(0, 3)))
    assert EngineConfig(kv_8bit_layers=[]).kv_8bit_layers == ()


@pytest.mark.parametrize("text", [*KV_DTYPES, "int8:fp8", "bf16:int4", "int8:int4"])
def test_a_kv_dtype_names_how_keys_and_values_are_stored(text: str) -> None:
    assert EngineConfig(kv_dtype=text).kv_format == parse_kv_dtype(text)


def test_a_kv_dtype_that_is_none_is_refused_with_all_there_are() -> None:
    with pytest.raises(ConfigError, match="kv_dtype must be one of bf16, int8, fp8, int4, int4-full, or KEY:VALUE"):
        EngineConfig(kv_dtype="q8_0")


def test_keys_and_values_are_exact_and_the_gate_is_closed_unless_somebody_says_otherwise() -> None:
    assert EngineConfig().kv_format == KV_DTYPES["bf16"]
    assert EngineConfig().kv_8bit_layers is None
    assert EngineConfig().kv_quality_gate


def test_the_kv_memory_is_known_in_bytes() -> None:
    assert EngineConfig(kv_memory="1MiB").kv_memory_bytes == EngineConfig(kv_memory=2**20).kv_memory_bytes == 2**20
    assert EngineConfig().kv_memory_bytes is None


def test_the_users_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert user_cache() == tmp_path / "own"
    monkeypatch.delenv("OCTAVO_CACHE")
    assert user_cache() == tmp_path / "shared" / "octavo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "octavo"


def test_no_more_sequences_run_than_a_step_has_tokens() -> None:
    assert EngineConfig(max_num_seqs=64, max_num_batched_tokens=10).max_num_running == 10
    assert EngineConfig(max_num_seqs=4, max_num_batched_tokens=10).max_num_running == 4


def test_a_setting_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'kv_memmory' \(did you mean 'kv_memory'\?\)"):
        EngineConfig.of({"kv_memmory": "1GiB"})
    with pytest.raises(ConfigError, match="there is no setting 'tensor_parallel_size'; there are block_size, "):
        LLM("smollm2", tensor_parallel_size=2)
    assert EngineConfig.of({"block_size": 32}) == EngineConfig(block_size=32)
