"""Memory, context, concurrency and format: one is found from the others, and the answer is the largest there is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from exactness_lab import SHAPES
from hf_configs import REAL
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError
from octavo.formats.kv_format import KV_DTYPES
from octavo.model.hf_config import spec_from_hf_config
from octavo.planner import PROCESS_BYTES, Plan, compare, plan, solve

LLAMA = spec_from_hf_config(REAL["Llama-3.1-8B"])
GEMMA = spec_from_hf_config(REAL["gemma-3-1b"])
SPECS = {"llama": LLAMA, "gemma": GEMMA, **SHAPES}
GIB = 2**30

loads = st.fixed_dictionaries(
    {
        "spec": st.sampled_from(sorted(SPECS)),
        "context": st.integers(1, 4096),
        "concurrency": st.integers(1, 512),
        "kv_dtype": st.sampled_from(["bf16", "int8", "fp8", "int8:bf16"]),
        "block_size": st.sampled_from([16, 32, 48, 256]),
    }
)


def solved(load: dict[str, Any], **changes: Any) -> Plan:
    """The plan for a load; ``None`` leaves a value out."""
    asked = {**load, **changes}
    return solve(SPECS[asked.pop("spec")], **asked)


@given(loads)
def test_the_memory_found_is_enough_and_one_byte_less_is_not(load: dict[str, Any]) -> None:
    found = solved(load)
    assert found.solved == "memory" and found.spare_bytes == 0
    assert solved(load, memory=found.memory).kv_bytes == found.kv_bytes
    with pytest.raises(CapacityError, match="1 bytes too few"):
        solved(load, memory=found.memory - 1)


@given(loads, st.integers(0, 2**34))
def test_the_context_found_fits_and_one_token_more_does_not(load: dict[str, Any], more: int) -> None:
    memory = solved(load, context=1).memory + more
    found = solved(load, context=None, memory=memory)
    assert found.solved == "context" and found.spare_bytes >= 0
    assert solved(load, context=found.context, memory=memory).num_blocks == found.num_blocks
    if found.context < SPECS[load["spec"]].max_position_embeddings:
        with pytest.raises(CapacityError):
            solved(load, context=found.context + 1, memory=memory)


@given(loads, st.integers(0, 2**34))
def test_the_concurrency_found_fits_and_one_sequence_more_does_not(load: dict[str, Any], more: int) -> None:
    memory = solved(load, concurrency=1).memory + more
    found = solved(load, concurrency=None, memory=memory)
    assert found.solved == "concurrency" and found.spare_bytes >= 0
    assert solved(load, concurrency=found.concurrency, memory=memory).num_blocks == found.num_blocks
    if found.concurrency < 512:
        with pytest.raises(CapacityError):
            solved(load, concurrency=found.concurrency + 1, memory=memory)


@given(loads, st.sampled_from(["bf16", "int8", "int4", "int4-full"]))
def test_the_format_found_is_the_first_that_fits(load: dict[str, Any], least: str) -> None:
    assume(SPECS[load["spec"]].head_dim % 32 == 0)
    memory = solved(load, kv_dtype=least).memory
    asked = {**load, "spec": SPECS[load["spec"]], "kv_dtype": None, "memory": memory}
    found = solve(**asked)
    assert found.kv_dtype == next(row.kv_dtype for row in compare(**asked) if row.fits)
    assert list(KV_DTYPES).index(found.kv_dtype) <= list(KV_DTYPES).index(least)


@given(loads)
def test_an_engine_with_the_plans_settings_has_the_plans_pool(load: dict[str, Any]) -> None:
    """To the block, and it holds a request of the whole context."""
    found = solved(load)
    config = EngineConfig(**found.settings)
    pool = plan(SPECS[load["spec"]], config, free_memory=found.kv_bytes)
    assert (pool.nbytes, pool.num_blocks) == (found.kv_bytes, found.num_blocks)
    assert (pool.max_model_len, config.max_num_running) == (found.context, found.concurrency)


def test_memory_is_for_weights_the_process_and_the_cache_together() -> None:
    found = solve(LLAMA, memory="24GiB", context="8k", concurrency=4, kv_dtype="bf16")
    assert found.solved == "nothing"
    assert found.weight_bytes == 2 * LLAMA.num_parameters
    assert found.process_bytes == PROCESS_BYTES + 4 * 4 * LLAMA.vocab_size
    assert found.kv_bytes == (1 + 4 * 512) * 16 * 131_072
    assert found.weight_bytes + found.process_bytes + found.kv_bytes + found.spare_bytes == 24 * GIB


def test_of_context_and_concurrency_left_out_the_context_comes_first() -> None:
    assert solve(LLAMA, memory="24GiB").kv_dtype == "bf16"
    short = solve(LLAMA, memory="24GiB")
    assert (short.solved, short.concurrency) == ("concurrency", 1)
    assert short.context == solve(LLAMA, memory="24GiB", concurrency=1).context < LLAMA.max_position_embeddings
    roomy = solve(LLAMA, memory="64GiB", kv_dtype="int8")
    assert (roomy.context, roomy.concurrency) == (LLAMA.max_position_embeddings, 6)


def test_memory_alone_cannot_be_found_with_another() -> None:
    for given_ in ({}, {"context": 8}, {"concurrency": 8}):
        with pytest.raises(ConfigError, match="give both of them, or memory"):
            solve(LLAMA, **given_)


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    """Each of the ways out that it names is one, and nothing larger is."""
    asked: dict[str, Any] = {"memory": 24 * GIB, "context": 16384, "concurrency": 8, "kv_dtype": "bf16"}
    with pytest.raises(CapacityError) as caught:
        solve(LLAMA, **asked)
    message = str(caught.value)
    missing, memory, context, concurrency = (
        int(re.search(pattern, message)[1].replace(",", ""))  # type: ignore[index]
        for pattern in (
            r"^([\d,]+) bytes too few",
            r"memory of ([\d,]+)",
            r"context of ([\d,]+)",
            r"concurrency of (\d+)",
        )
    )
    assert memory == asked["memory"] + missing
    assert "kv_dtype int8 or fp8 or int4 or int4-full (after octavo eval-kv)" in message
    for way in ({"memory": memory}, {"context": context}, {"concurrency": concurrency}, {"kv_dtype": "int8"}):
        assert solve(LLAMA, **asked | way).spare_bytes >= 0
    for short in ({"memory": memory - 1}, {"context": context + 1}, {"concurrency": concurrency + 1}):
        with pytest.raises(CapacityError):
            solve(LLAMA, **asked | short)


def test_weights_that_do_not_fit_leave_one_way_out() -> None:
    with pytest.raises(
        CapacityError, match=r"too few in 4,294,967,296: weights and the process take 16,[\d,]+ bytes"
    ) as no:
        solve(LLAMA, memory="4GiB")
    assert "context of" not in str(no.value) and "concurrency of" not in str(no.value)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("asked", [{}, {"context": 100}, {"context": 100, "concurrency": 3}])
def test_the_memory_that_would_fit_can_be_given_as_it_is_said(spec: str, asked: dict[str, Any]) -> None:
    with pytest.raises(CapacityError) as refused:
        solve(SPECS[spec], memory="1MiB", **asked)
    [said] = re.findall(r"What would fit: memory of [\d,]+ bytes \(([\d.]+[MG]iB)\)", str(refused.value))
    assert 0 <= solve(SPECS[spec], memory=said, **asked).spare_bytes < GIB / 50


def test_a_pool_of_more_blocks_than_an_id_can_name_is_refused() -> None:
    long = spec_from_hf_config(REAL["Llama-3.1-8B"] | {"max_position_embeddings": 2**24, "rope_scaling": None})
    layers = tuple(replace(layer, window=2**24 + number % 8) for number, layer in enumerate(long.layers))
    with pytest.raises(CapacityError, match="2,147,483,647 blocks that a KV pool can have; raise block_size"):
        solve(replace(long, layers=layers), context="16m", concurrency=512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": "8x"}, "cannot read '8x' as a number of tokens"),
        ({"context": "0"}, "must be positive"),
        ({"context": -1}, "must be positive"),
        ({"context": 1.5}, "whole number"),
        ({"context": True}, "whole number"),
        ({"context": "129k"}, "132,096 tokens is more than this model's of 131,072"),
        ({"memory": "lots"}, "cannot read 'lots' as a size"),
        ({"memory": 0}, "must be positive"),
        ({"concurrency": 0}, "from 1 to 512"),
        ({"concurrency": 513}, "from 1 to 512"),
        ({"concurrency": "8"}, "from 1 to 512"),
        ({"kv_dtype": "int3"}, "kv_dtype must be one of bf16"),
        ({"kv_8bit_layers": [32]}, "layers 0 to 31"),
        ({"kv_8bit_layers": "0"}, "must be a list of layers"),
        ({"block_size": 8}, "block_size"),
    ],
)
def test_what_cannot_be_read_or_met_by_this_model_is_refused(change: dict[str, Any], message: str) -> None:
    asked = {"memory": "24GiB", "context": "8k", "concurrency": 2, "kv_dtype": "int8"}
    with pytest.raises(ConfigError, match=message):
        solve(LLAMA, **asked | change)


def test_contexts_are_read_with_units_of_1024() -> None:
    contexts = ("8k", "128K", " 8192 ", 8192)
    found = [solve(LLAMA, context=context, concurrency=1).context for context in contexts]
    assert found == [8192, 131072, 8192, 8192]


def test_every_format_is_compared_and_one_given_apart_joins_them() -> None:
    rows = compare(LLAMA, memory="24GiB", context="16k", concurrency=8, kv_dtype="int8:fp8")
    assert [row.kv_dtype for row in rows] == [*KV_DTYPES, "int8:fp8"]
    assert [row.kv_dtype for row in rows if not row.fits] == ["bf16"]
    assert [row.kv_dtype for row in rows if row.needs_evaluation] == ["int4-full"]
    [refused] = [row for row in rows if not row.fits]
    assert refused.plan is not None and refused.plan.memory > 24 * GIB
    assert [row.kv_dtype for row in compare(LLAMA, memory="24GiB", kv_dtype="int8:int4")] == [*KV_DTYPES]


def test_with_every_layer_at_8_bits_no_format_needs_an_evaluation() -> None:
    layers = list(range(LLAMA.num_layers))
    rows = compare(LLAMA, memory="24GiB", kv_8bit_layers=layers)
    assert [row.kv_dtype for row in rows if row.needs_evaluation] == []
    with pytest.raises(CapacityError, match=r"kv_dtype int8 or fp8 or int4 or int4-full;"):
        solve(LLAMA, memory="24GiB", context=16384, concurrency=8, kv_dtype="bf16", kv_8bit_layers=layers)


def test_a_format_that_the_head_dim_does_not_allow_keeps_its_row() -> None:
    odd = replace(SHAPES["mha"], head_dim=48)
    rows = {row.kv_dtype: row for row in compare(odd, memory="1GiB")}
    assert rows["int8"].fits
    assert rows["int4"].refusal == "needs a head_dim that is a multiple of 32"
    assert (rows["int4"].bytes_per_token, rows["int4"].plan) == (None, None)
    with pytest.raises(ConfigError, match="multiple of 32"):
        solve(odd, memory="1GiB", kv_dtype="int4")


def test_a_window_lets_more_sequences_fit() -> None:
    unwindowed = replace(GEMMA, layers=tuple(replace(layer, window=None) for layer in GEMMA.layers))
    asked: dict[str, Any] = {"memory": "8GiB", "context": "32k"}
    assert solve(GEMMA, **asked).concurrency > 3 * solve(unwindowed, **asked).concurrency
