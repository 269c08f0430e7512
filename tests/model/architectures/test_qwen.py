"""Qwen2 and Qwen3: biases or norms of q and k, and which layers have a window."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import config_of, reference, windows, windows_in

from octavo.errors import UnsupportedModelError
from octavo.model.hf_config import spec_from_hf_config

WINDOWS: list[dict[str, Any]] = [
    {},
    {"use_sliding_window": True},
    {"use_sliding_window": True, "max_window_layers": 5},
    {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 24},
    {"use_sliding_window": True, "max_window_layers": 4, "sliding_window": None},
    {"use_sliding_window": False, "max_window_layers": 4, "sliding_window": 24},
    {"use_sliding_window": True, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"] * 4},
    {"layer_types": ["full_attention"] * 8},
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Qwen2", {"attention_bias": True}, "attention_bias to True"),
    ("Qwen2", {"use_sliding_window": 1}, "use_sliding_window to 1"),
    ("Qwen2", {"max_window_layers": -1}, "max_window_layers to -1"),
    ("Qwen2", {"max_window_layers": True}, "max_window_layers to True"),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window to 0"),
    ("Qwen2", {"layer_types": ["sliding_attention"] * 8}, "no sliding_window that is used"),
    ("Qwen2", {"layer_types": ["full_attention"] * 7}, "layer_types"),
    ("Qwen2", {"layer_types": ["linear_attention"] * 8}, "layer_types"),
    ("Qwen2", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
    ("Qwen2", {"use_mrope": True}, "use_mrope to True"),
    ("Qwen3", {"attention_bias": 1}, "attention_bias to 1"),
    ("Qwen3", {"head_dim": 24}, "head_dim must be a multiple of 16"),
]


@pytest.mark.parametrize("settings", WINDOWS, ids=str)
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_layers_have_the_windows_of_transformers(family: str, settings: dict[str, Any]) -> None:
    config = config_of(f"{family}ForCausalLM", **settings)
    spec = spec_from_hf_config(config)
    assert windows(spec) == windows_in(reference(config))
    assert {layer.rope for layer in spec.layers} == {spec.ropes[0]}


def test_qwen2_has_biases_and_qwen3_has_norms() -> None:
    qwen2, qwen3 = (spec_from_hf_config(config_of(f"Qwen{i}ForCausalLM")) for i in (2, 3))
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, "none")
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm) == (False, False, "head")


@pytest.mark.parametrize(("family", "settings", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_octavo_cannot_do_is_refused_by_name(family: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(config_of(f"{family}ForCausalLM", **settings))
