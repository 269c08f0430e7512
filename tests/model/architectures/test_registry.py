"""What holds for every architecture: defaults are those of transformers, unknown keys are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import assert_same, config_of, reference
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp_gguf import metadata_of

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.architectures.registry import ARCHITECTURES
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.spec import ModelSpec

FLAT = [
    architecture for architecture in ARCHITECTURES if architecture.name != "Gemma3ForConditionalGeneration"
]  # which keeps its text model's settings in a table of their own


@pytest.mark.parametrize("left_out", ["num_key_value_heads", "head_dim", None])
@pytest.mark.parametrize("architecture", FLAT, ids=lambda architecture: architecture.name)
def test_missing_keys_have_the_defaults_of_transformers(architecture: Architecture, left_out: str | None) -> None:
    config = config_of(architecture.name, hidden_size=1024)
    if left_out is not None:
        del config[left_out]
    whole, spec = reference(config), spec_from_hf_config(config)
    assert spec == spec_from_hf_config(whole.to_dict())
    assert_same(spec, whole)


@pytest.mark.parametrize("settings", [{"num_local_experts": 8}, {"unheard_of": 1}, {"mlp_bias": True}], ids=str)
@pytest.mark.parametrize("architecture", FLAT, ids=lambda architecture: architecture.name)
def test_a_setting_nobody_asked_for_is_refused(architecture: Architecture, settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=" to ".join(str(word) for word in next(iter(settings.items())))):
        spec_from_hf_config(config_of(architecture.name, **settings))


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "SmolLM3", "Granite"])
def test_attention_biases_are_a_setting(family: str) -> None:
    for setting in (True, False):
        spec = spec_from_hf_config(config_of(f"{family}ForCausalLM", attention_bias=setting))
        assert (spec.qkv_bias, spec.o_bias) == (setting, setting)


def test_every_gguf_name_has_one_reader() -> None:
    read = [architecture.gguf_name for architecture in ARCHITECTURES if architecture.from_gguf is not None]
    assert sorted(read) == sorted({architecture.gguf_name for architecture in ARCHITECTURES})


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 1), max_size=9),
    st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=7, max_size=9),
    st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "full_attention"]), st.floats(), max_size=2),
)


@pytest.mark.parametrize("architecture", FLAT, ids=lambda architecture: architecture.name)
@given(data=st.data())
def test_any_value_of_any_key_gives_a_spec_or_a_typed_refusal(architecture: Architecture, data: st.DataObject) -> None:
    whole = reference(config_of(architecture.name)).to_dict()
    keys = st.sampled_from(sorted({*whole, "rope_scaling", "rope_theta", "unheard_of"}))
    changes = data.draw(st.dictionaries(keys, values, min_size=1, max_size=3))
    try:
        assert isinstance(spec_from_hf_config(whole | changes), ModelSpec)
    except UnsupportedModelError as error:
        assert str(error)


@pytest.mark.parametrize(
    "architecture", [a for a in FLAT if a.from_gguf is not None], ids=lambda architecture: architecture.name
)
@given(data=st.data())
def test_any_value_of_any_key_of_a_gguf_file_gives_a_spec_or_a_typed_refusal(
    architecture: Architecture, data: st.DataObject
) -> None:
    whole = metadata_of(reference(config_of(architecture.name)))
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(whole)), values, min_size=1, max_size=3))
    layers = data.draw(st.sampled_from([8, 46, 62]))  # the number says something to some
    try:
        spec = spec_from_gguf({**whole, f"{architecture.gguf_name}.block_count": layers, **changes}, GgufExtras(True))
    except UnsupportedModelError as error:
        assert str(error)
    else:
        assert isinstance(spec, ModelSpec)
