"""Bytes per token and per block are the allocator's for every architecture and format; the blocks that a load takes."""

from __future__ import annotations

import functools
import itertools
import json
import random

import pytest
from hf_configs import REAL
from random_models import MODELS

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.formats.kv_format import CODECS, KVFormat
from octavo.kv.windows import blocks_held, first_block
from octavo.model.architectures.registry import ARCHITECTURES
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.runner import make_pool
from octavo.model.spec import ModelSpec
from octavo.planner import attention_kind, blocks_of_load, bytes_per_block, bytes_per_token, head_sharing, kv_formats

KNOWN = {
    "Llama-3.1-8B": {"bf16": 131_072, "int8": 66_560, "fp8": 66_560, "int4": 53_760, "int4-full": 40_960},
    "Llama-3.2-1B": {"bf16": 32_768, "int8": 16_896, "fp8": 16_896, "int4": 13_568, "int4-full": 10_240},
    "Qwen3-0.6B": {"bf16": 114_688, "int8": 58_240, "fp8": 58_240, "int4": 47_040, "int4-full": 35_840},
}
"""Bytes per token with 16-bit scales: layers x KV heads x (key + value)."""


@functools.cache
def spec_of(name: str) -> ModelSpec:
    config = REAL[name] if name in REAL else json.loads(MODELS[name]().config.to_json_string())
    return spec_from_hf_config(config)


@pytest.mark.parametrize("name", KNOWN)
def test_published_models_take_the_known_bytes_per_token(name: str) -> None:
    spec = spec_of(name)
    taken = {dtype: bytes_per_token(spec, kv_formats(spec, EngineConfig(kv_dtype=dtype))) for dtype in KNOWN[name]}
    assert taken == KNOWN[name]


@pytest.mark.parametrize("name", [*MODELS, *REAL])
def test_bytes_per_block_are_the_native_pools(name: str) -> None:
    """Every pair of formats for keys and values, some layers at 8 bits, several block sizes: to the byte."""
    spec = spec_of(name)
    pools = 0
    for key, value in itertools.product(CODECS, repeat=2):
        if not KVFormat(key, value).suits(spec.head_dim):
            continue
        for kept, block_size in itertools.product((None, (0,), (0, spec.num_layers - 1)), (16, 48, 128)):
            config = EngineConfig(kv_dtype=f"{key}:{value}", kv_8bit_layers=kept, block_size=block_size)
            formats = kv_formats(spec, config)
            pool = make_pool(spec, formats, block_size=block_size, num_blocks=3)
            assert pool.block_bytes == bytes_per_block(spec, block_size, formats), config
            assert pool.nbytes == 3 * pool.block_bytes
            pools += 1
    assert pools >= 3 * 3 * 9  # bf16, int8 and fp8 suit every head_dim that there is


def test_every_architecture_is_among_the_models_whose_blocks_are_compared() -> None:
    compared = {spec_of(name).architecture for name in (*MODELS, *REAL)}
    assert compared == {architecture.name for architecture in ARCHITECTURES}


def test_layers_at_8_bits_make_a_block_as_large_as_the_largest_group() -> None:
    spec = spec_of("gemma 3")
    few, many = (
        bytes_per_block(spec, 16, kv_formats(spec, EngineConfig(kv_dtype="int4-full", kv_8bit_layers=kept)))
        for kept in ((), (0,))
    )
    assert many > few


def test_a_head_dim_that_a_format_cannot_hold_is_refused_with_what_it_needs() -> None:
    spec = spec_of("mqa, odd sizes, tied")
    with pytest.raises(ConfigError, match="'int4' needs a head_dim that is a multiple of 32; this model's is 48"):
        kv_formats(spec, EngineConfig(kv_dtype="int4"))


def test_layers_that_do_not_exist_are_refused_with_those_that_do() -> None:
    spec = spec_of("gqa")
    with pytest.raises(ConfigError, match="kv_8bit_layers names layer 2; this model has layers 0 to 1"):
        kv_formats(spec, EngineConfig(kv_8bit_layers=[0, 2]))


def test_without_windows_a_load_takes_the_blocks_of_its_tokens() -> None:
    assert blocks_of_load(spec_of("gqa"), 100, 3, block_size=16, max_num_batched_tokens=64) == 3 * 7


def test_windows_take_what_they_see_and_what_one_step_adds() -> None:
    """26 layers of Gemma 3 1B: four groups of which one sees all, the others 512 tokens."""
    spec = spec_of("gemma-3-1b")
    windows = [spec.layers[group[0]].window for group in spec.kv_groups]
    full = windows.count(None)
    taken = blocks_of_load(spec, 32_768, 8, block_size=16, max_num_batched_tokens=512)
    assert taken == full * 8 * 2048 + (len(windows) - full) * (8 * 33 + 8 + 504 // 16)
    assert blocks_of_load(spec, 100, 8, block_size=16, max_num_batched_tokens=512) == len(windows) * 8 * 7


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_holds_more_blocks_than_a_load_is_said_to(seed: int) -> None:
    """Sequences that advance by chance, a step's budget shared: what the windows' rule keeps is never more."""
    rng = random.Random(seed)
    spec = spec_of("gemma 3")
    block_size, budget, context = 16, rng.choice([5, 24, 64, 200]), rng.randrange(1, 400)
    concurrency = rng.randrange(1, min(budget, 8) + 1)
    most = blocks_of_load(spec, context, concurrency, block_size=block_size, max_num_batched_tokens=budget)
    alone = sum(
        blocks_held(context, spec.layers[group[0]].window, block_size=block_size, max_step_tokens=budget)
        for group in spec.kv_groups
    )
    assert most <= concurrency * alone
    computed = [0] * concurrency
    while min(computed) < context:
        left, held = budget - concurrency, 0
        for sequence, before in enumerate(computed):
            step = min(1 + rng.randint(0, left), context - before)
            left -= max(step - 1, 0)
            computed[sequence] = before + step
            for group in spec.kv_groups:
                window = spec.layers[group[0]].window
                held += -(-computed[sequence] // block_size) - first_block(before, window, block_size)
        assert held <= most


def test_heads_that_share_keys_and_values_are_compared_with_mha() -> None:
    sharing = head_sharing(spec_of("Llama-3.1-8B"), EngineConfig(kv_dtype="int8"))
    assert (sharing.kind, sharing.bytes_per_token, sharing.mha_bytes_per_token) == ("GQA", 66_560, 4 * 66_560)
    assert sharing.factor == 4
    assert [attention_kind(spec_of(name)) for name in ("mha", "gqa", "gemma-3-1b")] == ["MHA", "GQA", "MQA"]
