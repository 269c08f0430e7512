"""The plan of the KV pool: exact bytes, decided before anything is allocated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exactness_lab import SHAPES

from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError
from octavo.formats.kv_format import KVFormat
from octavo.model.spec import ModelSpec
from octavo.planner import MAX_BLOCKS, blocks_of_load, bytes_per_block, bytes_per_token, kv_formats, plan

GQA, HYBRID, WINDOWED = SHAPES["gqa"], SHAPES["hybrid"], SHAPES["windowed"]
PLENTY = 2**40


def formats(spec: ModelSpec, **config: object) -> tuple[KVFormat, ...]:
    return kv_formats(spec, EngineConfig(**config))  # type: ignore[arg-type]


def test_bytes_per_token_are_the_formula_and_bytes_per_block_the_largest_group() -> None:
    assert bytes_per_token(GQA, formats(GQA)) == 3 * 2 * 2 * 32 * 2  # layers, K and V, KV heads, head_dim, bytes
    assert bytes_per_block(GQA, 16, formats(GQA)) == 16 * bytes_per_token(GQA, formats(GQA))
    assert (
        bytes_per_block(HYBRID, 32, formats(HYBRID)) == 32 * bytes_per_token(HYBRID, formats(HYBRID)) // 3
    )  # one of its three layers


def test_an_explicit_budget_is_used_in_whole_blocks() -> None:
    block = bytes_per_block(GQA, 16, formats(GQA))
    planned = plan(GQA, EngineConfig(kv_memory=10 * block + block - 1), free_memory=PLENTY)
    assert (planned.num_blocks, planned.nbytes) == (10, 10 * block)
    assert planned.num_tokens == planned.max_model_len == 9 * 16  # all but the null block


def test_without_a_budget_a_share_is_taken_but_no_more_than_can_be_used() -> None:
    block = bytes_per_block(GQA, 16, formats(GQA))
    config = EngineConfig(kv_memory_share=0.5, max_num_seqs=2)
    assert plan(GQA, config, free_memory=100 * block).num_blocks == 50
    assert plan(GQA, config, free_memory=PLENTY).num_blocks == 1 + 2 * 4096 // 16


def test_every_layer_group_needs_its_own_blocks() -> None:
    planned = plan(HYBRID, EngineConfig(kv_memory=9 * bytes_per_block(HYBRID, 16, formats(HYBRID))), free_memory=PLENTY)
    assert (planned.group_windows, planned.num_tokens) == ((None, None, 40), 2 * 16)


def test_a_group_with_a_window_takes_blocks_for_the_window_and_one_step() -> None:
    block = bytes_per_block(HYBRID, 16, formats(HYBRID))
    config = EngineConfig(kv_memory=(1 + 2 * 100 + 6) * block, max_num_batched_tokens=32)
    planned = plan(HYBRID, config, free_memory=PLENTY)
    assert planned.num_tokens == planned.longest_request == planned.max_model_len == 100 * 16
    wide_steps = plan(HYBRID, replace(config, max_num_batched_tokens=512), free_memory=PLENTY)
    assert wide_steps.num_tokens == (2 * 100 + 6 - 36) // 2 * 16  # 36 blocks for 39 + 512 positions


def test_windows_alone_bound_no_request() -> None:
    block = bytes_per_block(WINDOWED, 16, formats(WINDOWED))
    config = EngineConfig(kv_memory=7 * block, max_num_batched_tokens=32)
    planned = plan(WINDOWED, config, free_memory=PLENTY)
    assert planned.longest_request is None
    assert planned.num_tokens == planned.max_model_len == WINDOWED.max_position_embeddings
    one_less = plan(WINDOWED, replace(config, kv_memory=6 * block), free_memory=PLENTY)
    assert one_less.longest_request == one_less.max_model_len == 5 * 16


def test_no_more_is_taken_than_windows_can_use() -> None:
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=32)
    load = {"block_size": 16, "max_num_batched_tokens": 32}
    for spec in (WINDOWED, HYBRID):
        num_blocks = plan(spec, config, free_memory=PLENTY).num_blocks
        assert num_blocks == 1 + blocks_of_load(spec, spec.max_position_embeddings, 2, **load)
    assert plan(WINDOWED, config, free_memory=PLENTY).num_blocks <= 1 + 2 * 6


def test_a_context_that_windows_do_not_fit_is_refused_with_what_they_take() -> None:
    block = bytes_per_block(WINDOWED, 16, formats(WINDOWED))
    config = EngineConfig(kv_memory=6 * block, max_model_len=4096, max_num_batched_tokens=32)
    with pytest.raises(CapacityError, match=rf"holds 80 tokens.* of 4096 tokens, which takes {7 * block:,} bytes"):
        plan(WINDOWED, config, free_memory=PLENTY)
    assert plan(WINDOWED, replace(config, kv_memory=7 * block), free_memory=PLENTY).max_model_len == 4096


def test_a_budget_too_small_for_one_request_is_refused_with_both_sizes() -> None:
    block = bytes_per_block(GQA, 16, formats(GQA))
    with pytest.raises(CapacityError, match=rf"of {3 * block:,} bytes holds 32 tokens.* takes {4 * block:,} bytes"):
        plan(GQA, EngineConfig(kv_memory=3 * block, max_model_len=33), free_memory=PLENTY)
    with pytest.raises(CapacityError, match="KV memory of 1,000 bytes holds 0 tokens"):
        plan(GQA, EngineConfig(kv_memory=1000), free_memory=PLENTY)
    with pytest.raises(CapacityError, match="holds 0 tokens"):
        plan(GQA, EngineConfig(), free_memory=0)


def test_a_budget_beyond_the_memory_that_is_free_is_refused_with_both_sizes() -> None:
    block = bytes_per_block(GQA, 16, formats(GQA))
    with pytest.raises(CapacityError, match=rf"kv_memory is {10 * block:,} bytes; {9 * block:,} bytes are free"):
        plan(GQA, EngineConfig(kv_memory=10 * block), free_memory=9 * block)


def test_no_budget_gives_more_blocks_than_an_id_can_name() -> None:
    tiny = replace(SHAPES["mha"], num_kv_heads=1, num_heads=1, layers=SHAPES["mha"].layers[:1])
    planned = plan(tiny, EngineConfig(kv_memory="1024TiB"), free_memory=2**62)
    assert planned.num_blocks == MAX_BLOCKS


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len 4097 is more than this model's context of 4096"):
        plan(GQA, EngineConfig(max_model_len=4097), free_memory=PLENTY)
