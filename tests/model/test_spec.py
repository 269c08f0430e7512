import dataclasses
import typing

import numpy as np
import pytest
import torch
import transformers
from hf_configs import config_of
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import UnsupportedModelError
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.spec import LayerSpec, LongRope, ModelSpec, RopeSpec, SpecChoices
from octavo.model.weights import empty_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    LLAMA3,
    YARN,
    YARN | {"original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 2, "attention_factor": 0.75},
    YARN | {"truncate": False, "mscale": 0.707, "mscale_all_dim": 1.0},
    YARN | {"factor": 1, "mscale": 0.707},
    YARN | {"original_max_position_embeddings": 2},
]

PINNED = "13cb8cd5a86352366f8c27b11c78f12c1d3da055dec55e5113d436e884e9708f"


def test_digest_is_stable_across_processes_and_versions(config):
    # Pinned: a change of this value makes every stored cache foreign, so it must be on purpose.
    assert spec_from_hf_config(config).digest().hex() == PINNED


def test_digest_covers_what_is_computed_and_nothing_else(config):
    spec = spec_from_hf_config(config)
    same = dataclasses.replace(spec, max_position_embeddings=512, architecture="MistralForCausalLM")
    assert same.digest() == spec.digest()
    rope = spec.layers[0].rope
    for change in (
        {"norm_eps": 1e-6},
        {"layers": (LayerSpec(None, RopeSpec(2.0, dim=16)),) * 2},
        {"layers": (LayerSpec(None, dataclasses.replace(rope, scale=1.5)),) * 2},
        {"layers": (LayerSpec(8, rope), LayerSpec(None, rope))},
        {"layers": (LayerSpec(None, rope), LayerSpec(None, None))},
        {"norms": "both"},
        {"norm_offset": 1.0},
        {"qk_norm": "head"},
        {"qkv_bias": True},
        {"o_bias": True},
        {"activation": "gelu_tanh"},
        {"attention_scale": 0.3},
        {"attention_softcap": 50.0},
        {"logit_softcap": 30.0},
        {"embed_scale": 2.0},
        {"residual_scale": 2.0},
        {"logit_scale": 2.0},
    ):
        assert dataclasses.replace(spec, **change).digest() != spec.digest()


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 500000.0), (128, 10000.0), (16, 123456.7)])
def test_inverse_frequencies_are_those_of_transformers(config, scaling, head_dim, theta):
    config |= {"rope_theta": theta, "head_dim": head_dim, "max_position_embeddings": 131072}
    settings = {key: config[key] for key in config if key != "architectures"}
    # transformers adds to the table it is given, so each side gets its own.
    reference = transformers.LlamaConfig(**settings, rope_scaling=dict(scaling))
    config["rope_scaling"] = dict(scaling)
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](reference, torch.device("cpu"))
    # Both work in float32: their powers differ by an ulp or two (1.2e-7 each), and scaling rounds again.
    ours = spec_from_hf_config(config).ropes[0]
    np.testing.assert_allclose(ours.inv_freq(), expected.numpy(), rtol=6e-7)
    assert ours.scale == factor


def test_frequency_factors_divide_each_frequency():
    plain = RopeSpec(10000.0, dim=16).inv_freq()
    factors = tuple(float(i) for i in range(1, 9))
    divided = RopeSpec(10000.0, dim=16, kind="factors", freq_factors=factors).inv_freq()
    np.testing.assert_allclose(divided, plain / np.arange(1, 9, dtype=np.float32), rtol=1.2e-7)


def test_shapes_list_the_output_matrix_only_when_untied(config):
    tied = spec_from_hf_config(config).tensor_shapes()
    untied = spec_from_hf_config(config | {"tie_word_embeddings": False}).tensor_shapes()
    assert untied.keys() - tied.keys() == {("lm_head", -1)}
    assert tied["k", 1] == (2 * 16, 64)
    assert len(tied) == 2 + 9 * 2


@pytest.mark.parametrize(
    "rope",
    [
        {"theta": 1e300},
        {"theta": 1e-300},
        {"theta": 1e4, "kind": "linear", "factor": 1e300},
        {"theta": 1e4, "kind": "linear", "factor": 1e-300},
        {"theta": 1e4, "kind": "llama3", "factor": 8.0, "low_freq_factor": 1e-320, "high_freq_factor": 2e-320},
        {"theta": 1e4, "kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    ],
)
def test_rotary_settings_that_float32_cannot_follow_are_refused_without_a_warning(rope, recwarn):
    with pytest.raises(UnsupportedModelError, match="rotary"):
        RopeSpec(**rope, dim=16)
    assert not recwarn.list


def test_frequency_factors_must_fit_the_rotated_elements():
    with pytest.raises(UnsupportedModelError, match="16 rotated elements need 8 rotary factors, not 1"):
        RopeSpec(10000.0, dim=16, kind="factors", freq_factors=(1.0,))


def test_what_architectures_choose_are_the_fields_of_a_spec_that_need_not_be_said():
    hints = typing.get_type_hints(ModelSpec)
    optional = {field.name for field in dataclasses.fields(ModelSpec) if field.default is not dataclasses.MISSING}
    chosen = optional - {"long_rope"} | {"attention_scale"}
    assert typing.get_type_hints(SpecChoices) == {name: hints[name] for name in chosen}


@pytest.mark.parametrize("dim", [0, -2, 15, 1024])
def test_an_impossible_number_of_rotated_elements_is_refused(dim):
    with pytest.raises(UnsupportedModelError, match="rotated elements"):
        RopeSpec(10000.0, dim=dim)


def test_no_more_than_a_head_is_rotated_and_by_all_layers_alike(config):
    spec = spec_from_hf_config(config)
    with pytest.raises(UnsupportedModelError, match="rotated elements of a head must lie between 2 and 16"):
        dataclasses.replace(spec, layers=(LayerSpec(None, RopeSpec(1e4, dim=32)),) * 2)
    mixed = tuple(LayerSpec(None, RopeSpec(1e4, dim=dim)) for dim in (8, 16))
    with pytest.raises(UnsupportedModelError, match="as many elements"):
        dataclasses.replace(spec, layers=mixed)


def test_the_longer_rotary_embedding_serves_engines_of_more_tokens_only(config):
    spec = spec_from_hf_config(config)
    short, long = RopeSpec(1e4, dim=16), RopeSpec(1e4, dim=16, scale=1.5)
    layers = (LayerSpec(None, short), LayerSpec(None, None))
    two = dataclasses.replace(spec, layers=layers, long_rope=LongRope(above=100, rope=long))
    assert two.at_length(100) == dataclasses.replace(spec, layers=layers)
    assert two.at_length(101) == dataclasses.replace(spec, layers=(LayerSpec(None, long), LayerSpec(None, None)))
    assert two.at_length(100).at_length(101) == two.at_length(100)
    assert len({two.digest(), two.at_length(100).digest(), two.at_length(101).digest()}) == 3


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ([None] * 7, [7]),
        ([8] * 7, [7]),
        ([8, None] * 13, [13, 13]),  # Gemma 2 2B
        (([8] * 5 + [None]) * 4 + [8] * 2, [4, 4, 4, 3, 4, 3, 4]),  # Gemma 3 1B
        (([8] * 5 + [None]) * 5 + [8] * 4, [6, 6, 5, 6, 6, 5]),  # Gemma 3 4B
        (([8] * 5 + [None]) * 8, [10, 10, 10, 10, 8]),  # Gemma 3 12B
        (([8] * 5 + [None]) * 10 + [8] * 2, [13, 13, 13, 13, 10]),  # Gemma 3 27B
        ([None, 8, None], [1, 1, 1]),
        ([8] * 4095 + [None], [511] + [512] * 7 + [1]),
    ],
)
def test_layers_are_in_groups_of_one_window_whose_blocks_waste_an_eighth_at_most(config, windows, sizes):
    spec = spec_from_hf_config(config)
    rope = spec.layers[0].rope
    groups = dataclasses.replace(spec, layers=tuple(LayerSpec(window, rope) for window in windows)).kv_groups
    assert sorted(layer for group in groups for layer in group) == list(range(len(windows)))
    assert all(len({windows[layer] for layer in group}) == 1 for group in groups)
    assert sorted(map(len, groups)) == sorted(sizes)
    assert 8 * max(sizes) * len(sizes) <= 9 * len(windows)


FACTORS = st.one_of(st.sampled_from([0.0, 1e-30, 0.5, 2.0, 1e4, 1e30]), st.floats())
COUNTS = st.integers(-1, 12)
ROPE_FIELDS = {
    "theta": FACTORS,
    "dim": st.sampled_from([0, 1, 2, 6, 18]),
    "kind": st.sampled_from(["linear", "llama3", "factors"]),
    "factor": FACTORS,
    "low_freq_factor": FACTORS,
    "scale": FACTORS,
}
FIELDS = {
    "vocab_size": COUNTS,
    "hidden_size": COUNTS,
    "intermediate_size": COUNTS,
    "num_heads": COUNTS,
    "num_kv_heads": COUNTS,
    "head_dim": st.sampled_from([0, 8, 16, 24, 512, 528]),
    "norm_eps": FACTORS,
    "qk_norm": st.sampled_from(["none", "head", "full"]),
    "norms": st.sampled_from(["pre", "post", "both"]),
    **dict.fromkeys(("attention_scale", "attention_softcap", "logit_softcap", "embed_scale", "logit_scale"), FACTORS),
}


def some(fields):
    """Values for a few of them."""
    return st.sets(st.sampled_from(sorted(fields)), max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )


@given(changes=some(FIELDS), rope=st.none() | some(ROPE_FIELDS), window=st.sampled_from([None, -1, 0, 1, 2**31 - 1]))
def test_the_native_core_runs_every_spec_there_can_be(changes, rope, window):
    spec = spec_from_hf_config(config_of("LlamaForCausalLM", num_attention_heads=8))
    try:
        layer = LayerSpec(window, None if rope is None else dataclasses.replace(spec.ropes[0], **rope))
        spec = dataclasses.replace(spec, layers=(layer, LayerSpec()), **changes)
    except UnsupportedModelError:
        return
    empty_model(spec, "generic", 1)
