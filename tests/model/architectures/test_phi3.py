"""Phi-3's configuration, against transformers' own reading of it, and the metadata of its GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llama_cpp_gguf import write_gguf
from random_models import random_model
from transformers import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.hf_folder import HfFolder

SHORT = [1 + i / 12 for i in range(6)]
LONG = [1 + i / 2 for i in range(6)]
CONFIG: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
    "eos_token_id": 2,
}
# The keys of microsoft/Phi-4-mini-instruct.
LONGER = CONFIG | {
    "attention_bias": False,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        "AutoTokenizer": "Xenova/gpt-4o",
    },
    "embd_pdrop": 0.0,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
}
METADATA: dict[str, Any] = {
    "general.architecture": "phi3",
    "phi3.vocab_size": 96,
    "phi3.context_length": 4096,
    "phi3.rope.scaling.original_context_length": 4096,
    "phi3.embedding_length": 64,
    "phi3.feed_forward_length": 96,
    "phi3.block_count": 2,
    "phi3.attention.head_count": 4,
    "phi3.attention.head_count_kv": 2,
    "phi3.attention.layer_norm_rms_epsilon": 1e-5,
    "phi3.rope.dimension_count": 16,
    "phi3.rope.freq_base": 10000.0,
    "phi3.attention.sliding_window": 0,
}


def scaling(**settings: Any) -> dict[str, Any]:
    return LONGER | {"rope_scaling": LONGER["rope_scaling"] | settings}


@pytest.mark.parametrize(
    "config",
    [
        LONGER,
        scaling(factor=4.0),
        scaling(attention_factor=1.25),
        scaling(type="yarn"),
        scaling(partial_rotary_factor=0.75),
        LONGER | {"max_position_embeddings": 256},
        CONFIG | {"partial_rotary_factor": 0.5},
        CONFIG | {"rope_theta": 250000.0, "original_max_position_embeddings": 4096},
        CONFIG,
    ],
    ids=lambda config: str(config.get("rope_scaling", ""))[-30:],
)
def test_it_rotates_as_in_transformers_on_both_sides_of_its_first_context(config: dict[str, Any]) -> None:
    # transformers changes the tables that it is given.
    reference = Phi3RotaryEmbedding(
        Phi3Config(**config | {"rope_scaling": dict(config.get("rope_scaling", {})) or None})
    )
    spec = spec_from_hf_config(config)
    first = config.get("original_max_position_embeddings", 4096)
    for length in (first, first + 1):
        reference(torch.zeros(1), torch.tensor([[length - 1]]))
        rope = spec.at_length(length).ropes[0]
        np.testing.assert_allclose(rope.inv_freq(), reference.inv_freq.numpy(), rtol=6e-7)
        assert np.float32(rope.scale) == np.float32(reference.attention_scaling)


def test_engines_on_either_side_share_no_cache() -> None:
    spec = spec_from_hf_config(LONGER)
    short, long = spec.at_length(256), spec.at_length(257)
    assert short.digest() != long.digest()
    assert short == spec.at_length(1)
    assert long == spec.at_length(8192)


def test_a_configuration_that_transformers_wrote_is_read_alike(tmp_path: Path) -> None:
    for config in (LONGER, scaling(type="yarn"), CONFIG | {"sliding_window": 24}):
        own = Phi3Config(**config | {"rope_scaling": dict(config.get("rope_scaling", {})) or None})
        own.save_pretrained(tmp_path)
        written = own.to_dict() | {"architectures": ["Phi3ForCausalLM"]}
        assert spec_from_hf_config(written) == spec_from_hf_config(config)


def test_the_first_name_of_longrope_is_understood() -> None:
    assert spec_from_hf_config(scaling(type="su")) == spec_from_hf_config(LONGER)
    assert spec_from_hf_config(scaling(type="su", rope_type="longrope")) == spec_from_hf_config(LONGER)


def test_code_of_the_publisher_may_stand_beside_the_weights_by_its_full_name() -> None:
    own = {kind: f"microsoft/Phi-3.5-mini-instruct--{name}" for kind, name in LONGER["auto_map"].items()}
    assert spec_from_hf_config(LONGER | {"auto_map": own}) == spec_from_hf_config(LONGER)


@pytest.mark.parametrize(("window", "seen"), [(None, None), (2047, 2047)])
def test_every_layer_has_the_window(window: int | None, seen: int | None) -> None:
    spec = spec_from_hf_config(CONFIG | {"sliding_window": window})
    assert [layer.window for layer in spec.layers] == [seen, seen]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LONGER | {"auto_map": {"AutoModelForCausalLM": "modeling_phi3_v.Phi3VForCausalLM"}}, "auto_map"),
        (LONGER | {"auto_map": "modeling_phi3.Phi3ForCausalLM"}, "auto_map"),
        (LONGER | {"full_attn_mod": 2}, "full_attn_mod to 2"),
        (LONGER | {"lm_head_bias": True}, "lm_head_bias"),
        (LONGER | {"attention_bias": True}, "attention_bias"),
        (LONGER | {"sliding_window": 0}, "sliding_window to 0"),
        (LONGER | {"partial_rotary_factor": 1.5}, "partial_rotary_factor to 1.5"),
        (LONGER | {"partial_rotary_factor": 0.7}, "11|multiple of 2"),
        (LONGER | {"partial_rotary_factor": "all"}, "partial_rotary_factor to 'all'"),
        (LONGER | {"partial_rotary_factor": 0.5}, "8 rotated elements need 4 rotary factors, not 6"),
        (LONGER | {"original_max_position_embeddings": 1}, "original context of 2"),
        (scaling(original_max_position_embeddings=512), "original_max_position_embeddings to 512; Octavo needs 256"),
        (scaling(partial_rotary_factor=0.5), "partial_rotary_factor to 0.5; Octavo needs 0.75"),
        (scaling(short_mscale=1.1), "short_mscale"),
        (scaling(short_factor=None), "does not say short_factor"),
        (scaling(short_factor=2.0), "short_factor to 2.0; Octavo needs a list of numbers"),
        (scaling(long_factor=[*LONG[:5], "x"]), "long_factor to 'x'"),
        (scaling(long_factor=[*LONG[:5], 0]), "long_factor to 0"),
        (scaling(long_factor=[*LONG[:5], 1e300]), "finite"),
        (scaling(long_factor=LONG[:5]), "12 rotated elements need 6 rotary factors, not 5"),
        (scaling(attention_factor=1e300), "rotary scale"),
        (scaling(type="longer"), "'longer'"),
        (scaling(rope_type="default"), "two types"),
        (LONGER | {"rope_parameters": {"rope_type": "default"}}, "they disagree"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    config: dict[str, Any], message: str, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(config)
    assert not recwarn.list


def test_fused_tensors_are_cut_where_transformers_cuts_them(tmp_path: Path) -> None:
    model = random_model(Phi3Config(**{key: value for key, value in CONFIG.items() if key != "architectures"}))
    model.save_pretrained(tmp_path)
    tensors = {(t.slot, t.layer): t.bits for t in HfFolder(tmp_path, "m").tensors()}
    layer = model.model.layers[1]
    for names, fused in ((("q", "k", "v"), layer.self_attn.qkv_proj), (("gate", "up"), layer.mlp.gate_up_proj)):
        whole = fused.weight.detach().view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(np.concatenate([tensors[name, 1] for name in names]), whole)
    assert len(tensors["k", 1]) == 2 * 16


def test_a_fused_tensor_of_the_wrong_height_is_refused(tmp_path: Path) -> None:
    model = random_model(Phi3Config(**{key: value for key, value in CONFIG.items() if key != "architectures"}))
    file = write_gguf(model, tmp_path / "m.gguf", METADATA | {"phi3.attention.head_count_kv": 1})
    with pytest.raises(WeightsError, match=r"attn_qkv\.weight has shape \[128, 64\].*\[96, 64\]"):
        GgufSource(file, "m").check()


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({}, None),
        ({"phi3.attention.sliding_window": 2047}, 2047),
        ({"phi3.attention.sliding_window": None}, 2047),
        ({"phi3.attention.sliding_window": None, "phi3.context_length": 131072}, 262144),
    ],
)
def test_a_window_that_the_first_gguf_files_leave_out_is_known(change: dict[str, Any], window: int | None) -> None:
    spec = spec_from_gguf({k: v for k, v in (METADATA | change).items() if v is not None}, GgufExtras(False))
    assert [layer.window for layer in spec.layers] == [window, window]


BOTH = {"rope_factors_short": SHORT, "rope_factors_long": LONG}


@pytest.mark.parametrize(
    ("change", "factors", "message"),
    [
        ({"phi3.attention.sliding_window": None, "phi3.context_length": 512}, {}, "does not say .*sliding_window"),
        ({}, {"rope_factors_short": SHORT}, r"has rope_factors_short\.weight; Octavo needs"),
        ({}, BOTH | {"rope_freqs": LONG}, r"and rope_freqs\.weight; Octavo needs"),
        ({}, BOTH, "16 rotated elements need 8 rotary factors, not 6"),
        ({"phi3.rope.scaling.type": "yarn"}, BOTH, "scaling.type to 'yarn'"),
        ({"phi3.rope.scaling.factor": 4.0}, BOTH, "scaling.factor to 4.0"),
        ({"phi3.rope.scaling.original_context_length": None}, BOTH, "does not say .*original_context_length"),
        ({"phi3.rope.dimension_count": 32}, {}, "rotated elements of a head must lie between 2 and 16"),
        ({"phi3.expert_count": 16}, {}, "expert_count to 16"),
    ],
)
def test_metadata_that_cannot_be_followed_is_refused_by_name(
    change: dict[str, Any], factors: dict[str, list[float]], message: str
) -> None:
    metadata = {key: value for key, value in (METADATA | change).items() if value is not None}
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_gguf(metadata, GgufExtras(False, freq_factors=factors))
