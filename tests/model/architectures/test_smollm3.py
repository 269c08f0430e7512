"""SmolLM3: which layers rotate and which see through a window."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import config_of, reference, windows, windows_in
from llama_cpp_gguf import metadata_of

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config

NAME = "SmolLM3ForCausalLM"
LAYERS: list[dict[str, Any]] = [
    {},
    {"no_rope_layer_interval": 3},
    {"no_rope_layer_interval": 1},
    {"no_rope_layers": [0, 1] * 4},
    {"no_rope_layers": [1, 1, 0, 1] * 3, "no_rope_layer_interval": 2},
    {"use_sliding_window": True, "sliding_window": 24},
    {"use_sliding_window": True, "sliding_window": 24, "no_rope_layers": [0, 1] * 4},
    {"use_sliding_window": True, "sliding_window": None},
    {"use_sliding_window": False, "sliding_window": 24},
    {"use_sliding_window": True, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"] * 4},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"no_rope_layers": [1] * 7}, "no_rope_layers.*each of 8 layers"),
    ({"no_rope_layers": [2] * 8}, "no_rope_layers"),
    ({"no_rope_layers": "1" * 8}, "no_rope_layers"),
    ({"no_rope_layer_interval": 0}, "no_rope_layer_interval to 0"),
    ({"use_sliding_window": True, "sliding_window": -1}, "sliding_window to -1"),
    ({"sliding_window": 24, "layer_types": ["sliding_attention"] * 8}, "no sliding_window that is used"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
]


def rotating(config: dict[str, Any]) -> list[bool]:
    return [layer.rope is not None for layer in spec_from_hf_config(config).layers]


@pytest.mark.parametrize("settings", LAYERS, ids=str)
def test_layers_rotate_and_see_as_in_transformers(settings: dict[str, Any]) -> None:
    config = config_of(NAME, **settings)
    whole = reference(config)
    assert rotating(config) == [bool(rotates) for rotates in whole.no_rope_layers[:8]]
    assert windows(spec_from_hf_config(config)) == windows_in(whole)
    assert spec_from_hf_config(config) == spec_from_hf_config(whole.to_dict())


def test_keys_of_the_published_configuration_that_no_code_reads_change_nothing() -> None:
    config = config_of(NAME)
    assert spec_from_hf_config(config | {"max_window_layers": 28, "pretraining_tp": 2}) == spec_from_hf_config(config)


def test_a_model_without_any_rotation_is_one() -> None:
    assert spec_from_hf_config(config_of(NAME, no_rope_layers=[0] * 8)).ropes == ()


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_octavo_cannot_do_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(config_of(NAME, **settings))


def test_in_a_gguf_file_every_fourth_layer_does_not_rotate_whatever_its_folder_said() -> None:
    """It has no key for it, and llama.cpp, for which it was written, knows this one rule."""
    metadata = metadata_of(reference(config_of(NAME, no_rope_layers=[0, 1] * 4)))
    spec = spec_from_gguf(metadata, GgufExtras(tie_word_embeddings=True))
    assert [layer.rope is not None for layer in spec.layers] == [True, True, True, False] * 2
