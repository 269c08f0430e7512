"""Gemma 2's configuration, against transformers' own reading of it, and the metadata of its GGUF files."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from hf_configs import assert_same

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.spec import ModelSpec

CONFIG: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "vocab_size": 96,
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
}
PUBLISHED = CONFIG | {
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 128,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 144,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
}
METADATA: dict[str, Any] = {
    "general.architecture": "gemma2",
    "gemma2.vocab_size": 96,
    "gemma2.embedding_length": 72,
    "gemma2.feed_forward_length": 96,
    "gemma2.block_count": 5,
    "gemma2.attention.head_count": 4,
    "gemma2.attention.head_count_kv": 4,
    "gemma2.attention.key_length": 128,
    "gemma2.attention.value_length": 128,
    "gemma2.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma2.context_length": 8192,
}
TIED = GgufExtras(tie_word_embeddings=True)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        PUBLISHED,
        CONFIG | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        CONFIG | {"sliding_window": 8, "num_key_value_heads": 2, "tie_word_embeddings": False},
        CONFIG | {"layer_types": ["full_attention"] * 5, "sliding_window": None},
        CONFIG | {"layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"]},
    ],
)
def test_a_configuration_means_what_transformers_makes_of_it(config: dict[str, Any]) -> None:
    reference = transformers.Gemma2Config(**{k: v for k, v in config.items() if k != "architectures"})
    reference.architectures = config["architectures"]
    spec = spec_from_hf_config(config)
    _assert_same_gemma(spec, reference)
    assert spec == spec_from_hf_config(reference.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention to True"),
        ({"hidden_activation": "gelu"}, "hidden_activation to 'gelu'"),
        ({"hidden_act": "silu"}, "hidden_act to 'silu'; Octavo needs gelu_pytorch_tanh"),
        ({"sliding_window": None}, "sliding_attention, but no sliding_window"),
        ({"sliding_window_size": 512}, "sliding_window_size to 512; Octavo needs 4096"),
        ({"attn_logit_softcapping": 0}, "attn_logit_softcapping to 0"),
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping to '30'"),
        ({"query_pre_attn_scalar": -1}, "query_pre_attn_scalar to -1"),
        ({"sliding_window_pattern": 2}, "sliding_window_pattern to 2"),
        ({"rope_local_base_freq": 1.0}, "rope_local_base_freq"),
    ],
)
def test_what_octavo_cannot_do_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(CONFIG | change)


def test_metadata_that_say_the_least_give_the_model_llama_cpp_runs() -> None:
    least = CONFIG | {"head_dim": 128, "query_pre_attn_scalar": 128, "num_key_value_heads": 4}
    assert spec_from_gguf(METADATA, TIED) == spec_from_hf_config(least)


def test_metadata_that_say_all_win() -> None:
    said = {
        "gemma2.attention.sliding_window": 12,
        "gemma2.attention.sliding_window_pattern": [False, False, True, True, False],
        "gemma2.attn_logit_softcapping": 7.5,
        "gemma2.final_logit_softcapping": 2.5,
    }
    spec = spec_from_gguf(METADATA | said, TIED)
    assert [layer.window for layer in spec.layers] == [None, None, 12, 12, None]
    assert (spec.attention_softcap, spec.logit_softcap) == (7.5, 2.5)
    spec = spec_from_gguf(METADATA | said | {"gemma2.attention.sliding_window_pattern": 3}, TIED)
    assert [layer.window for layer in spec.layers] == [12, 12, None, 12, 12]


@pytest.mark.parametrize("pattern", [[True, False], [1, 0, 1, 0, 1], 0, "2"])
def test_a_window_pattern_that_is_no_pattern_is_refused(pattern: object) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_window_pattern"):
        spec_from_gguf(METADATA | {"gemma2.attention.sliding_window_pattern": pattern}, TIED)


def test_the_27b_scales_its_scores_by_hidden_size_over_heads() -> None:
    """No key of the file says so; the configuration does."""
    large = {"gemma2.block_count": 46, "gemma2.embedding_length": 4608, "gemma2.attention.head_count": 32}
    spec = spec_from_gguf(METADATA | large, TIED)
    assert spec.attention_scale == 144**-0.5 == spec_from_hf_config(PUBLISHED).attention_scale
    assert spec_from_gguf(METADATA, TIED).attention_scale == 128**-0.5
    with pytest.raises(UnsupportedModelError, match="head_count to 32; Octavo needs no more than embedding_length 16"):
        spec_from_gguf(METADATA | large | {"gemma2.embedding_length": 16}, TIED)


def _assert_same_gemma(spec: ModelSpec, reference: transformers.Gemma2Config) -> None:
    assert {layer.rope.theta for layer in spec.layers if layer.rope} == {reference.rope_parameters["rope_theta"]}
    assert_same(spec, reference)
    assert spec.attention_scale == reference.query_pre_attn_scalar**-0.5
    assert spec.attention_softcap == reference.attn_logit_softcapping
    assert spec.logit_softcap == reference.final_logit_softcapping
