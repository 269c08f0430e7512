from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.model.hf_config import spec_from_hf_config

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mlp_bias": True}, "mlp_bias to True"),
    ({"hidden_act": "gelu"}, "hidden_act to 'gelu'.*silu or swish"),
    ({"pretraining_tp": 2}, "pretraining_tp to 2"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor to 0.5"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ({"is_causal": False}, "is_causal to False"),
    ({"num_local_experts": 8}, "num_local_experts to 8"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping to 30.0"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping to 50.0"),
    ({"auto_map": {"AutoModelForCausalLM": "custom.Model"}}, "auto_map"),
    ({"rope_interleaved": True}, "rope_interleaved"),
    ({"sliding_window": 4096}, "sliding_window to 4096"),
    ({"something_nobody_knows": 3}, "something_nobody_knows to 3"),
    ({"architectures": ["MixtralForCausalLM"]}, "'MixtralForCausalLM'.*LlamaForCausalLM, MistralForCausalLM"),
    ({"architectures": ["LlamaForCausalLM", "Other"]}, "Other"),
    ({"architectures": None, "model_type": "gemma"}, "'gemma'.*LlamaForCausalLM"),
    ({"architectures": None, "model_type": None}, "LlamaForCausalLM"),
    ({"model_type": "mistral"}, "model_type 'mistral'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'.*default, linear, llama3 and yarn"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "does not say factor"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "extrapolation_factor": 1.0}}, "extrapolation_factor"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1}, "YaRN cannot blend with rope_theta 1"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1e308}}, "YaRN cannot blend"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 1e-320}}, "YaRN cannot blend"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate to 1"),
    ({"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, "'longrope'"),
    ({"rope_scaling": {"type": "linear", "rope_type": "llama3"}}, "two types"),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor to 0"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [8]}}, "mrope_section"),
    ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_scaling": [2.0]}, "rope_scaling"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_theta 5.0, config.json itself"),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        "they disagree",
    ),
    (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 1.0,
            }
        },
        "more than low_freq_factor",
    ),
    ({"head_dim": 24}, "head_dim must be a multiple of 16; the model has 24"),
    (
        {"hidden_size": 66, "head_dim": 16, "intermediate_size": 95},
        "intermediate_size must be a multiple of 2",
    ),
    ({"hidden_size": 65, "head_dim": 16}, "hidden_size must be a multiple of 2; the model has 65"),
    ({"hidden_size": 66}, "66 does not divide by 4 heads"),
    ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
    ({"num_key_value_heads": 8}, "key-value heads must lie between 1 and 4"),
    ({"num_attention_heads": 0}, "num_attention_heads to 0"),
    ({"vocab_size": -1}, "vocab_size to -1"),
    ({"vocab_size": 96.0}, "vocab_size to 96.0"),
    ({"vocab_size": True}, "vocab_size to True"),
    ({"vocab_size": None}, "does not say vocab_size"),
    ({"hidden_size": "64"}, "hidden_size to '64'"),
    ({"hidden_size": 2**30}, "must lie between"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers to 1000000000"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps to -1.0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps to nan"),
    ({"rope_theta": 10**400}, "rope_theta"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings to 1"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ({**MISTRAL, "sliding_window": -5}, "sliding_window to -5"),
    ({**MISTRAL, "sliding_window": 8, "layer_types": ["full_attention"] * 2}, "layer_types"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[", ".join(change) for change, _ in REFUSED])
def test_what_octavo_cannot_do_is_refused_by_name(config, change, message):
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(config | change)


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": False, "mlp_bias": None, "quantization_config": None, "num_experts": 0},
        {"hidden_act": "swish", "pretraining_tp": 1, "partial_rotary_factor": 1.0},
        {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"torch_dtype": "float16", "use_cache": True, "_name_or_path": "x", "attention_dropout": 0.1},
        {"layer_types": ["full_attention", "full_attention"]},
        {"architectures": None},
    ],
)
def test_settings_that_switch_nothing_on_change_nothing(config, change):
    assert spec_from_hf_config(config | change) == spec_from_hf_config(config)


@pytest.mark.parametrize(("given", "window"), [(None, None), (32, 32)])
def test_a_mistral_window_becomes_the_window_of_every_layer(config, given, window):
    spec = spec_from_hf_config(config | MISTRAL | {"sliding_window": given})
    assert {layer.window for layer in spec.layers} == {window}


def test_old_and_new_rotary_settings_mean_the_same(config):
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = spec_from_hf_config(config | {"rope_scaling": {"type": "llama3", **scaling}})
    table = {"rope_type": "llama3", "rope_theta": 10000.0, **scaling}
    del config["rope_theta"]
    new = spec_from_hf_config(config | {"rope_parameters": table})
    both = spec_from_hf_config(config | {"rope_parameters": table, "rope_scaling": table})
    assert old == new == both
    assert old.ropes[0].kind == "llama3"
