"""Gemma 3's configuration, against transformers' own reading of it, its GGUF metadata, and the model with images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hf_configs import assert_same

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.hf_folder import HfFolder
from octavo.model.spec import ModelSpec, RopeSpec

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
CONFIG = SIZES | {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
PUBLISHED = CONFIG | {
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 20_000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 2_000_000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
LOCAL = {"rope_type": "default", "rope_theta": 5_000.0}
GLOBAL = {"rope_type": "linear", "rope_theta": 300_000.0, "factor": 2.0}
METADATA: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.vocab_size": 96,
    "gemma3.embedding_length": 72,
    "gemma3.feed_forward_length": 96,
    "gemma3.block_count": 8,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 64,
    "gemma3.attention.value_length": 64,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 512,
    "gemma3.context_length": 131_072,
    "gemma3.rope.freq_base": 2_000_000.0,
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 8.0,
}
TIED = GgufExtras(tie_word_embeddings=True)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        PUBLISHED,
        CONFIG | {"sliding_window_pattern": 3, "final_logit_softcapping": 12.5, "attention_bias": True},
        CONFIG | {"sliding_window_pattern": 1, "tie_word_embeddings": False},
        CONFIG | {"sliding_window_pattern": 2, "layer_types": ["full_attention", "sliding_attention"] * 4},
        CONFIG | {"rope_parameters": {"full_attention": GLOBAL, "sliding_attention": LOCAL}},
        CONFIG | {"rope_parameters": {"full_attention": GLOBAL}, "rope_local_base_freq": 7.0},
        CONFIG | {"rope_parameters": {"sliding_attention": LOCAL, "full_attention": None}, "rope_theta": 8.0},
    ],
)
def test_a_configuration_means_what_transformers_makes_of_it(config: dict[str, Any]) -> None:
    reference = _reference(config)
    spec = spec_from_hf_config(config)
    _assert_same_gemma(spec, reference)
    assert spec == spec_from_hf_config(reference.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention to True"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping to 50.0"),
        ({"sliding_window": None}, "sliding_attention, but no sliding_window"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern to 0"),
        ({"rope_local_base_freq": -1}, "rope_local_base_freq to -1"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters, sets rope_type"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters to 3"),
        ({"rope_parameters": [1]}, r"rope_parameters to \[1\]"),
        ({"rope_parameters": {"sliding_attention": LOCAL | {"mrope_section": [1]}}}, "mrope_section"),
        (
            {"rope_parameters": {"full_attention": GLOBAL}, "rope_scaling": {"type": "linear", "factor": 3.0}},
            "disagree",
        ),
        ({"architectures": None, "model_type": "gemma3n_text"}, "'gemma3n_text' is not supported.*Gemma3ForCausalLM"),
    ],
)
def test_what_octavo_cannot_do_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(CONFIG | change)


def test_metadata_give_the_spec_of_the_configuration() -> None:
    """A window in five layers of six, with a rotary base of 10,000 that is not scaled: no key says either."""
    published = PUBLISHED | {"query_pre_attn_scalar": 64, "rope_local_base_freq": 10_000}
    assert spec_from_gguf(METADATA, TIED) == spec_from_hf_config(published)


def test_metadata_that_say_more_win() -> None:
    said = {
        "gemma3.rope.freq_base_swa": 20_000.0,
        "gemma3.final_logit_softcapping": 12.5,
        "gemma3.attention.sliding_window_pattern": [True, False] * 4,
    }
    spec = spec_from_gguf(METADATA | said, TIED)
    assert [layer.window for layer in spec.layers] == [512, None] * 4
    assert spec.layers[0].rope == RopeSpec(20_000.0, 64)
    assert spec.logit_softcap == 12.5


def test_without_a_window_every_layer_has_the_global_base() -> None:
    spec = spec_from_gguf({k: v for k, v in METADATA.items() if "window" not in k}, TIED)
    assert {layer.window for layer in spec.layers} == {None}
    assert spec.ropes == (RopeSpec(2_000_000.0, 64, "linear", 8.0),)


def test_the_27b_scales_its_scores_by_hidden_size_over_heads() -> None:
    large = {"gemma3.block_count": 62, "gemma3.embedding_length": 5376, "gemma3.attention.head_count": 32}
    assert spec_from_gguf(METADATA | large, TIED).attention_scale == 168**-0.5
    assert spec_from_gguf(METADATA, TIED).attention_scale == 64**-0.5


def test_the_text_part_of_a_model_with_images_is_the_model_without_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = SIZES | {"head_dim": 16, "num_hidden_layers": 2, "sliding_window_pattern": 2}
    config = transformers.Gemma3Config(text_config=text, vision_config=_VISION, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).to(torch.bfloat16)
    alone = transformers.Gemma3ForCausalLM(config.text_config).to(torch.bfloat16)
    alone.model.load_state_dict(model.model.language_model.state_dict())
    model.save_pretrained(tmp_path / "with images")
    alone.save_pretrained(tmp_path / "alone")
    ours, theirs = (HfFolder(tmp_path / name, name) for name in ("with images", "alone"))
    assert ours.spec == replace(theirs.spec, architecture="Gemma3ForConditionalGeneration")
    for mine, other in zip(ours.tensors(), theirs.tensors(), strict=True):
        assert mine[:2] == other[:2]
        np.testing.assert_array_equal(mine.bits, other.bits)


def test_what_the_text_part_leaves_out_has_the_defaults_of_transformers() -> None:
    published = {"hidden_size": 2560, "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "type": "linear"}}
    spec = spec_from_hf_config(_with_images(published))
    _assert_same_gemma(spec, transformers.Gemma3TextConfig(hidden_size=2560))
    assert spec.layers[5].rope == RopeSpec(1_000_000.0, 256, "linear", 8.0)
    assert (spec.vocab_size, spec.intermediate_size, spec.num_heads) == (262_208, 9216, 8)
    assert not spec_from_hf_config(_with_images(published) | {"tie_word_embeddings": False}).tie_word_embeddings


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"text_config": 3}, "text_config to 3"),
        ({"text_config": {"model_type": "llama"}}, "text_config, sets model_type to 'llama'"),
        ({"text_config": {"num_experts": 4}}, "text_config, sets num_experts to 4"),
        ({"text_config": {"tie_word_embeddings": False}}, "text_config, sets tie_word_embeddings to False"),
        ({"audio_config": {"a": 1}}, "audio_config"),
    ],
)
def test_what_a_model_with_images_says_beside_its_text_is_known_or_refused(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(_with_images({}) | config)


def test_a_weight_that_belongs_to_neither_text_nor_images_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = SIZES | {"head_dim": 16, "num_hidden_layers": 1}
    config = transformers.Gemma3Config(text_config=text, vision_config=_VISION, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.register_parameter("audio_tower", torch.nn.Parameter(torch.ones(2)))
    model.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="audio_tower"):
        HfFolder(tmp_path, "m").check()


_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 28,
    "patch_size": 14,
}


def _with_images(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 255_999,
        "eoi_token_index": 256_000,
        "image_token_index": 262_144,
        "mm_tokens_per_image": 256,
        "text_config": text,
        "vision_config": _VISION,
    }


def _reference(config: dict[str, Any]) -> transformers.Gemma3TextConfig:
    reference = transformers.Gemma3TextConfig(**{k: v for k, v in config.items() if k != "architectures"})
    reference.architectures = config["architectures"]
    return reference


def _assert_same_gemma(spec: ModelSpec, reference: transformers.Gemma3TextConfig) -> None:
    for layer, kind in zip(spec.layers, reference.layer_types, strict=True):
        assert layer.rope is not None
        assert layer.rope.theta == reference.rope_parameters[kind]["rope_theta"]
        if (factor := reference.rope_parameters[kind].get("factor")) is not None:
            assert (layer.rope.kind, layer.rope.factor) == ("linear", factor)
    assert_same(spec, reference)
    assert spec.attention_scale == reference.query_pre_attn_scalar**-0.5
    assert spec.attention_softcap == reference.attn_logit_softcapping
    assert spec.logit_softcap == reference.final_logit_softcapping
    assert (spec.qkv_bias, spec.o_bias) == (reference.attention_bias,) * 2
