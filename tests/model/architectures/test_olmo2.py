"""OLMo 2's norms, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config

CONFIG: dict[str, Any] = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
}
METADATA: dict[str, Any] = {
    "general.architecture": "olmo2",
    "olmo2.vocab_size": 96,
    "olmo2.context_length": 4096,
    "olmo2.embedding_length": 64,
    "olmo2.feed_forward_length": 96,
    "olmo2.block_count": 2,
    "olmo2.attention.head_count": 4,
    "olmo2.attention.head_count_kv": 2,
    "olmo2.attention.layer_norm_rms_epsilon": 1e-6,
    "olmo2.rope.freq_base": 500000.0,
}


def test_norms_stand_after_each_half_and_over_all_heads() -> None:
    spec = spec_from_hf_config(CONFIG)
    assert (spec.norms, spec.qk_norm, spec.qkv_bias) == ("post", "full", False)
    shapes = spec.tensor_shapes()
    assert (shapes["q_norm", 0], shapes["k_norm", 0]) == ((64,), (32,))
    assert spec_from_hf_config(CONFIG | {"attention_bias": True}).o_bias


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv to 8.0"),
        ({"sliding_window": 4096}, "sliding_window to 4096"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor to 0.5"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(CONFIG | change)


def test_the_gguf_file_of_an_olmo_3_is_refused_by_its_window() -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_window to 4096"):
        spec_from_gguf(METADATA | {"olmo2.attention.sliding_window": 4096}, GgufExtras(False))
