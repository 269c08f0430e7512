from typing import Any

import numpy as np
import pytest

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config

YARN: dict[str, Any] = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "mamba"}, "'mamba' is not supported; Octavo runs llama"),
    ({"general.architecture": ["llama"]}, r"\['llama'\] is not supported"),
    ({"general.type": "adapter"}, "general.type to 'adapter'"),
    ({"split.count": 3}, "split.count to 3"),
    ({"llama.expert_count": 8}, "llama.expert_count to 8"),
    ({"llama.rope.scaling.type": "longrope"}, "scaling.type to 'longrope'"),
    ({**YARN, "llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor to 0.5"),
    ({**YARN, "llama.rope.scaling.yarn_attn_factor": 1.0}, "yarn_attn_factor to 1.0; Octavo needs 1.13"),
    ({**YARN, "llama.rope.scaling.yarn_beta_fast": 16.0}, "yarn_beta_fast to 16.0"),
    ({**YARN, "llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
    ({"llama.rope.scaling.attn_factor": 2.0}, "attn_factor to 2.0"),
    ({"llama.rope.dimension_count": 8}, "dimension_count to 8"),
    ({"llama.attention.value_length": 32}, "value_length to 32"),
    ({"llama.attention.key_length": 24}, "rope.dimension_count to 16"),
    ({"llama.attention.causal": False}, "causal to False"),
    ({"llama.attention.scale": 0.5}, "attention.scale to 0.5"),
    ({"llama.logit_scale": 2.0}, "logit_scale to 2.0"),
    ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping to 30.0"),
    ({"llama.attention.head_count_kv": [2, 1]}, "one value for all 2 layers"),
    ({"llama.attention.head_count_kv": [2, 2, 2]}, "one value for all 2 layers"),
    ({"llama.block_count": 0}, "block_count to 0"),
    ({"llama.embedding_length": None}, "does not say llama.embedding_length"),
    ({"llama.embedding_length": 66}, "66 does not divide by 4"),
    ({"llama.attention.layer_norm_rms_epsilon": 1e300}, "layer_norm_rms_epsilon to inf"),
    ({"llama.unheard_of": 1}, "llama.unheard_of to 1"),
    ({"tokenizer.ggml.tokens": ["a"] * 97}, "tokenizer has 97 tokens, the model only 96"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[", ".join(change) for change, _ in REFUSED])
def test_what_octavo_cannot_do_is_refused_by_name(metadata, change, message):
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_gguf(metadata | change, GgufExtras(True))


def test_both_kinds_of_file_describe_one_model(config, metadata):
    spec = spec_from_gguf(metadata, GgufExtras(True))
    assert spec == spec_from_hf_config(config)
    assert spec.digest() == spec_from_hf_config(config).digest()


def test_keys_outside_the_architecture_are_about_other_things(metadata):
    others = {
        "general.name": "x",
        "quantize.imatrix.file": "y",
        "somebody.version": "1",
        "tokenizer.ggml.pre": "z",
    }
    plain = spec_from_gguf(metadata, GgufExtras(True))
    assert spec_from_gguf(metadata | others, GgufExtras(True)) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        {"llama.rope.scaling.factor": 2.0},
        {"llama.rope.scale_linear": 2.0},
    ],
)
def test_every_way_to_write_linear_scaling_is_followed(metadata, change):
    rope = spec_from_gguf(metadata | change, GgufExtras(True)).ropes[0]
    assert (rope.kind, rope.factor) == ("linear", 2.0)


@pytest.mark.parametrize(
    "stated", [{}, {"llama.rope.scaling.yarn_attn_factor": float(np.float32(1 + 0.1 * np.log(4)))}]
)
def test_yarn_is_followed_as_in_a_configuration(config, metadata, stated):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    wanted = spec_from_hf_config(config | {"rope_scaling": scaling})
    assert spec_from_gguf(metadata | YARN | stated, GgufExtras(True)) == wanted


def test_a_scaling_type_of_none_switches_the_factor_off(metadata):
    change = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}
    assert spec_from_gguf(metadata | change, GgufExtras(True)).ropes[0].kind == "default"


def test_a_window_in_the_metadata_is_used(metadata):
    spec = spec_from_gguf(metadata | {"llama.attention.sliding_window": 32}, GgufExtras(True))
    assert [layer.window for layer in spec.layers] == [32, 32]


def test_the_vocabulary_may_be_known_by_its_tokens_only(metadata):
    del metadata["llama.vocab_size"]
    spec = spec_from_gguf(metadata | {"tokenizer.ggml.tokens": ["a"] * 50}, GgufExtras(True))
    assert spec.vocab_size == 50


@pytest.mark.parametrize("factors", [[1.0] * 7 + [0.0], [1.0] * 7 + [np.nan], [], [1.0] * 9])
def test_frequency_factors_that_make_no_sense_are_refused(metadata, factors):
    with pytest.raises(UnsupportedModelError, match=r"factors|rope_freqs"):
        spec_from_gguf(metadata, GgufExtras(True, {"rope_freqs": factors}))


def test_two_scalings_at_once_are_refused(metadata):
    with pytest.raises(UnsupportedModelError, match=r"both rope_freqs\.weight and a linear"):
        spec_from_gguf(metadata | {"llama.rope.scaling.factor": 2.0}, GgufExtras(True, {"rope_freqs": [1.0] * 8}))
