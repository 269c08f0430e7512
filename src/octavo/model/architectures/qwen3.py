"""Qwen3, the dense models: Qwen2 with a norm on every head of q and k in place of the biases."""

from __future__ import annotations

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.architectures.qwen2 import qwen_layers
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, attention_biases, spec_from_hf_fields
from octavo.model.spec import ModelSpec

_NAME = "Qwen3ForCausalLM"


def _from_hf(fields: Fields) -> ModelSpec:
    defaults = HfDefaults(max_position_embeddings=32_768, num_kv_heads=32, head_dim=128)
    biases = attention_biases(fields)
    return spec_from_hf_fields(fields, _NAME, defaults, layers=qwen_layers, qk_norm="head", **biases)


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return spec_from_gguf_fields(fields, extras, _NAME, qk_norm="head")


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="qwen3",
    gguf_name="qwen3",
    example="Qwen3 0.6B to 32B",
    features="a norm on each head of q and k; attention biases; windowed upper layers",
    refuses=("mixture of experts",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
)
