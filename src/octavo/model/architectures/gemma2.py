"""Gemma 2: norms before and after each half, soft caps, a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from octavo.model.architecture import GGUF_LLAMA_LAYER, HF_LLAMA_LAYER, Architecture, GgufExtras, Layers
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields, window_from_gguf, windows_from_gguf
from octavo.model.hf_fields import HfDefaults, ReadRotary, attention_biases, spec_from_hf_fields, windows_from_hf
from octavo.model.slots import Slots
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec, SpecChoices

_NAME = "Gemma2ForCausalLM"
_PERIOD = 2
"""Every so many layers one sees all keys."""
_WINDOW = 4096
_LAYERS_OF_27B = 46

GEMMA_HF_LAYER: Mapping[str, Slots] = {
    **HF_LLAMA_LAYER,
    "post_attention_layernorm.weight": ("attn_post_norm",),
    "pre_feedforward_layernorm.weight": ("mlp_norm",),
    "post_feedforward_layernorm.weight": ("mlp_post_norm",),
}
"""How transformers names the tensors of a layer. Llama's norm before the MLP is here the one after attention."""

GEMMA_GGUF_LAYER: Mapping[str, Slots] = {
    **GGUF_LLAMA_LAYER,
    "post_attention_norm.weight": ("attn_post_norm",),
    "post_ffw_norm.weight": ("mlp_post_norm",),
}
"""How a GGUF file names them."""

_EVERY_GEMMA: SpecChoices = {"norms": "both", "norm_offset": 1.0}


def gemma_from_hf(
    fields: Fields,
    architecture: str,
    defaults: HfDefaults,
    *,
    layers: Layers,
    rotary: ReadRotary | None = None,
    **choices: Unpack[SpecChoices],
) -> ModelSpec:
    """Read what Gemma 2 and 3 have in common; arguments are those of :func:`spec_from_hf_fields`."""
    fields.only("use_bidirectional_attention", False)
    # An older name that transformers ignores; a file may have both.
    fields.only("hidden_act", fields.get("hidden_activation") or "gelu_pytorch_tanh")
    every_gemma: SpecChoices = {
        **_EVERY_GEMMA,
        **attention_biases(fields),
        "attention_scale": fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "embed_scale": fields.integer("hidden_size") ** 0.5,
        **choices,
    }
    return spec_from_hf_fields(
        fields, architecture, defaults, layers=layers, rotary=rotary, activation_key="hidden_activation", **every_gemma
    )


def gemma_windows(fields: Fields, count: int, period: int) -> list[int | None]:
    """Each layer's window: ``layer_types``, or every ``period``-th layer sees all."""
    window = fields.integer_or_none("sliding_window", missing=_WINDOW)
    fields.only("sliding_window_size", window)  # some Gemma 2 files say it twice
    kinds = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(count)]
    return windows_from_hf(fields, count, window, kinds)


def gemma_from_gguf(
    fields: Fields,
    extras: GgufExtras,
    architecture: str,
    *,
    layers: Layers,
    layers_of_27b: int,
    **choices: Unpack[SpecChoices],
) -> ModelSpec:
    """Read what Gemma 2 and 3 have in common.

    No key says how scores are scaled: llama.cpp takes 1 / sqrt(hidden size / heads) for the 27B, which it knows by
    its number of layers, and 1 / sqrt(head_dim) for the others.
    """
    every_gemma: SpecChoices = {
        **_EVERY_GEMMA,
        "activation": "gelu_tanh",
        "embed_scale": fields.integer("embedding_length") ** 0.5,
        **choices,
    }
    spec = spec_from_gguf_fields(fields, extras, architecture, layers=layers, **every_gemma)
    if spec.num_layers != layers_of_27b:
        return spec
    if spec.hidden_size < spec.num_heads:
        raise fields.refusal(
            "attention.head_count", spec.num_heads, f"no more than embedding_length {spec.hidden_size}"
        )
    return replace(spec, attention_scale=(spec.hidden_size // spec.num_heads) ** -0.5)


def _hf_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    return tuple(LayerSpec(window, rope) for window in gemma_windows(fields, count, _PERIOD))


def _from_hf(fields: Fields) -> ModelSpec:
    return gemma_from_hf(
        fields,
        _NAME,
        HfDefaults(max_position_embeddings=8192, num_kv_heads=4, head_dim=256, tie_word_embeddings=True),
        layers=_hf_layers,
        attention_softcap=fields.number_or_none("attn_logit_softcapping", missing=50.0),
        logit_softcap=fields.number_or_none("final_logit_softcapping", missing=30.0),
    )


def _gguf_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    windows = windows_from_gguf(fields, count, window_from_gguf(fields) or _WINDOW, _PERIOD)
    return tuple(LayerSpec(window, rope) for window in windows)


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return gemma_from_gguf(
        fields,
        extras,
        _NAME,
        layers=_gguf_layers,
        layers_of_27b=_LAYERS_OF_27B,
        attention_softcap=fields.number("attn_logit_softcapping", 50.0),
        logit_softcap=fields.number("final_logit_softcapping", 30.0),
    )


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="gemma2",
    gguf_name="gemma2",
    example="Gemma 2 2B, 9B, 27B",
    features="soft caps of scores and logits; a window in every other layer; norms before and after; GeGLU",
    refuses=("bidirectional attention",),
    from_hf=_from_hf,
    hf_layer=GEMMA_HF_LAYER,
    from_gguf=_from_gguf,
    gguf_layer=GEMMA_GGUF_LAYER,
)
