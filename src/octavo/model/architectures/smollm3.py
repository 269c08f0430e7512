"""SmolLM3: Llama with layers that do not rotate, every fourth of them in the published model."""

from __future__ import annotations

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, attention_biases, spec_from_hf_fields, windows_from_hf
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

_NAME = "SmolLM3ForCausalLM"
_INTERVAL = 4
"""Every so many layers one does not rotate. Fixed in llama.cpp, where no key says it."""


def _layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    rotates = _rotates(fields, count)
    fields.ignore("sliding_window")
    window = fields.integer_or_none("sliding_window") if fields.flag("use_sliding_window", False) else None
    kinds = ["full_attention" if window is None or rotated else "sliding_attention" for rotated in rotates]
    windows = windows_from_hf(fields, count, window, kinds)
    return tuple(LayerSpec(w, rope if rotated else None) for w, rotated in zip(windows, rotates, strict=True))


def _rotates(fields: Fields, count: int) -> list[bool]:
    """Whether each layer rotates. ``no_rope_layers`` says 1 for a layer that does, whatever its name suggests."""
    interval = fields.integer("no_rope_layer_interval", _INTERVAL)
    listed = fields.get("no_rope_layers")
    if listed is None:
        return _every(interval, count)
    if not isinstance(listed, list) or len(listed) < count or not all(type(i) is int and i in (0, 1) for i in listed):
        raise fields.refusal("no_rope_layers", listed, f"1 or 0 for each of {count} layers")
    return [bool(flag) for flag in listed[:count]]


def _every(interval: int, count: int) -> list[bool]:
    return [(layer + 1) % interval != 0 for layer in range(count)]


def _gguf_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    return tuple(LayerSpec(None, rope if rotated else None) for rotated in _every(_INTERVAL, count))


def _from_hf(fields: Fields) -> ModelSpec:
    fields.ignore("pretraining_tp", "max_window_layers")  # in the published configuration; no code reads them
    fields.only("mlp_bias", False)
    defaults = HfDefaults(
        max_position_embeddings=32_768, num_kv_heads=4, tie_word_embeddings=True, rope_theta=2_000_000.0
    )
    return spec_from_hf_fields(fields, _NAME, defaults, layers=_layers, **attention_biases(fields))


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return spec_from_gguf_fields(fields, extras, _NAME, layers=_gguf_layers)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="smollm3",
    gguf_name="smollm3",
    example="SmolLM3 3B",
    features="layers without rotary embedding; windowed layers; attention biases",
    refuses=("biases of the MLP",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    gguf_pairs_rows=True,
)
