"""OLMo 2's norms, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import config_of, reference
from llama_cpp_gguf import metadata_of

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config

NAME = "Olmo2ForCausalLM"


def test_norms_stand_after_each_half_and_over_all_heads() -> None:
    spec = spec_from_hf_config(config_of(NAME))
    assert (spec.norms, spec.qk_norm, spec.qkv_bias) == ("post", "full", False)
    shapes = spec.tensor_shapes()
    assert (shapes["q_norm", 0], shapes["k_norm", 0]) == ((512,), (128,))
    assert spec_from_hf_config(config_of(NAME, attention_bias=True)).o_bias


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
        spec_from_hf_config(config_of(NAME, **change))


def test_the_gguf_file_of_an_olmo_3_is_refused_by_its_window() -> None:
    metadata = metadata_of(reference(config_of(NAME)))
    assert spec_from_gguf(metadata, GgufExtras(False)).norms == "post"
    with pytest.raises(UnsupportedModelError, match="sliding_window to 4096"):
        spec_from_gguf(metadata | {"olmo2.attention.sliding_window": 4096}, GgufExtras(False))
