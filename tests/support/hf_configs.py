"""Configurations of small models of any architecture, and what transformers makes of them."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo.model.architectures.registry import architecture_named
from octavo.model.spec import ModelSpec


def config_of(architecture: str, **settings: Any) -> dict[str, Any]:
    """A ``config.json`` of eight layers and 32 heads."""
    return {
        "architectures": [architecture],
        "vocab_size": 96,
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 16,
        **settings,
    }


def reference(config: dict[str, Any]) -> PretrainedConfig:
    """What transformers makes of it: every default filled in."""
    return CONFIG_MAPPING[architecture_named(config["architectures"][0]).model_type](**config)


def windows(spec: ModelSpec) -> list[int | None]:
    """Each layer's window in Octavo."""
    return [layer.window for layer in spec.layers]


def windows_in(config: PretrainedConfig) -> list[int | None]:
    """Each layer's window in transformers."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def assert_same(spec: ModelSpec, config: PretrainedConfig) -> None:
    """What every configuration says is read as transformers reads it."""
    assert spec.num_layers == config.num_hidden_layers
    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    assert spec.norm_eps == config.rms_norm_eps
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    assert spec.max_position_embeddings == config.max_position_embeddings
    assert windows(spec) == windows_in(config)
