"""Qwen2 and Qwen2.5: biases on q, k and v; a window in the upper layers, if it is switched on."""

from __future__ import annotations

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, spec_from_hf, windows_of
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

_NAME = "Qwen2ForCausalLM"


def qwen_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    """Layers from ``max_window_layers`` on have the window, or those that ``layer_types`` says."""
    window = fields.integer("sliding_window", 4096) if _uses_window(fields) else None
    first = fields.get("max_window_layers")
    first = 28 if first is None else first
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise fields.refusal("max_window_layers", first, "a whole number from 0")
    kinds = ["sliding_attention" if window is not None and i >= first else "full_attention" for i in range(count)]
    return tuple(LayerSpec(window, rope) for window in windows_of(fields, count, window, kinds))


def _uses_window(fields: Fields) -> bool:
    # A window that is given and not used, as in most published configurations, says nothing.
    return fields.flag("use_sliding_window", False) and not (
        fields.has("sliding_window") and fields.get("sliding_window") is None
    )


def _from_hf(fields: Fields) -> ModelSpec:
    fields.get("sliding_window")
    defaults = HfDefaults(max_position_embeddings=32_768, num_kv_heads=32)
    return spec_from_hf(fields, _NAME, defaults, layers=qwen_layers, qkv_bias=True)


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return spec_from_gguf_fields(fields, extras, _NAME, qkv_bias=True)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="qwen2",
    example="Qwen2.5 0.5B to 72B, Qwen2",
    features="biases on q, k and v; windowed upper layers",
    refuses="mixture of experts",
    from_hf=_from_hf,
    gguf_name="qwen2",
    from_gguf=_from_gguf,
)
