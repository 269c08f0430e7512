import dataclasses

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import UnsupportedModelError
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.spec import LayerSpec, RopeSpec

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

PINNED = "ad90443dea091f9ac5bbdc4cd6eb5b18abf895ffd5f913390bb63d560204c19a"


def test_digest_is_stable_across_processes_and_versions(config):
    # Pinned: a change of this value makes every stored cache foreign, so it must be on purpose.
    assert spec_from_hf_config(config).digest().hex() == PINNED


def test_digest_covers_what_is_computed_and_nothing_else(config):
    spec = spec_from_hf_config(config)
    same = dataclasses.replace(spec, max_position_embeddings=512, architecture="MistralForCausalLM")
    assert same.digest() == spec.digest()
    for change in ({"norm_eps": 1e-6}, {"rope": RopeSpec(2.0)}, {"layers": (LayerSpec(8), LayerSpec())}):
        assert dataclasses.replace(spec, **change).digest() != spec.digest()


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 4.0}, LLAMA3], ids=lambda s: s["rope_type"])
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 500000.0), (128, 10000.0), (16, 123456.7)])
def test_inverse_frequencies_are_those_of_transformers(config, scaling, head_dim, theta):
    config |= {"rope_theta": theta, "head_dim": head_dim, "max_position_embeddings": 131072}
    settings = {key: config[key] for key in config if key != "architectures"}
    # transformers adds to the table it is given, so each side gets its own.
    reference = transformers.LlamaConfig(**settings, rope_scaling=dict(scaling))
    config["rope_scaling"] = dict(scaling)
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](reference, torch.device("cpu"))
    assert factor == 1.0
    # Both work in float32: their powers differ by an ulp or two (1.2e-7 each), and scaling rounds again.
    ours = spec_from_hf_config(config).rope.inv_freq(head_dim)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=6e-7)


def test_frequency_factors_divide_each_frequency():
    plain = RopeSpec(10000.0).inv_freq(16)
    factors = tuple(float(i) for i in range(1, 9))
    divided = RopeSpec(10000.0, kind="factors", freq_factors=factors).inv_freq(16)
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
def test_rotary_settings_that_float32_cannot_follow_are_refused_without_a_warning(config, rope, recwarn):
    with pytest.raises(UnsupportedModelError, match="rotary"):
        dataclasses.replace(spec_from_hf_config(config), rope=RopeSpec(**rope))
    assert not recwarn.list


def test_frequency_factors_must_fit_the_head(config):
    rope = RopeSpec(10000.0, kind="factors", freq_factors=(1.0,))
    with pytest.raises(UnsupportedModelError, match="needs 8 rotary factors, not 1"):
        dataclasses.replace(spec_from_hf_config(config), rope=rope)
