"""Mistral: Llama with a sliding window. A GGUF file of it calls itself a Llama."""

from __future__ import annotations

from octavo.model.architecture import Architecture
from octavo.model.fields import Fields
from octavo.model.hf_fields import HfDefaults, check_layer_types, spec_from_hf_fields
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

_NAME = "MistralForCausalLM"
_WINDOW = 4096
"""The window transformers assumes when a configuration has no ``sliding_window`` key at all."""


def _layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    window = fields.integer_or_none("sliding_window", missing=_WINDOW)
    check_layer_types(fields, ["full_attention" if window is None else "sliding_attention"] * count)
    return (LayerSpec(window, rope),) * count


def _from_hf(fields: Fields) -> ModelSpec:
    defaults = HfDefaults(max_position_embeddings=131_072, num_kv_heads=8)
    return spec_from_hf_fields(fields, _NAME, defaults, layers=_layers)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="mistral",
    gguf_name="llama",
    example="Mistral 7B v0.1 (window), v0.3, Nemo",
    features="a sliding window in every layer",
    refuses=(),
    from_hf=_from_hf,
)
