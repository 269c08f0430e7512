"""Qwen2 and Qwen2.5: biases on q, k and v; a window in the upper layers, if it is switched on."""

from __future__ import annotations

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, spec_from_hf_fields, windows_from_hf
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

_NAME = "Qwen2ForCausalLM"


def qwen_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    """Layers from ``max_window_layers`` on have the window, or those that ``layer_types`` says."""
    fields.ignore("sliding_window")  # given and not used, as in most published configurations
    in_use = fields.flag("use_sliding_window", False)
    window = fields.integer_or_none("sliding_window", missing=4096) if in_use else None
    first = fields.integer("max_window_layers", 28, low=0)
    kinds = ["sliding_attention" if window is not None and i >= first else "full_attention" for i in range(count)]
    return tuple(LayerSpec(window, rope) for window in windows_from_hf(fields, count, window, kinds))


def _from_hf(fields: Fields) -> ModelSpec:
    defaults = HfDefaults(max_position_embeddings=32_768, num_kv_heads=32)
    return spec_from_hf_fields(fields, _NAME, defaults, layers=qwen_layers, qkv_bias=True)


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return spec_from_gguf_fields(fields, extras, _NAME, qkv_bias=True)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="qwen2",
    gguf_name="qwen2",
    example="Qwen2.5 0.5B to 72B, Qwen2",
    features="biases on q, k and v; windowed upper layers",
    refuses=("mixture of experts",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
)
