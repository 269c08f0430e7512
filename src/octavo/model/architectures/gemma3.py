"""Gemma 3, text: Gemma 2 with normed q and k instead of soft caps, and a rotary base of its own for windowed layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.architectures.gemma2 import (
    GEMMA_GGUF_LAYER,
    GEMMA_HF_LAYER,
    gemma_from_gguf,
    gemma_from_hf,
    gemma_windows,
)
from octavo.model.fields import Fields
from octavo.model.gguf_fields import factor_or, window_from_gguf, windows_from_gguf
from octavo.model.hf_fields import HARMLESS, HfDefaults, rope_from_hf
from octavo.model.rotary import Rotary
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

_NAME = "Gemma3ForCausalLM"
_WITH_IMAGES = "Gemma3ForConditionalGeneration"
_PERIOD = 6
"""Every so many layers one sees all keys."""
_LOCAL_THETA = 10_000.0
_LAYERS_OF_27B = 62
_DEFAULTS = HfDefaults(
    max_position_embeddings=131_072, num_kv_heads=4, head_dim=256, tie_word_embeddings=True, rope_theta=1_000_000.0
)
_TEXT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
"""What transformers takes for keys that the text part of published configurations leaves out."""
_OF_IMAGES = ("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")


def _from_hf(fields: Fields) -> ModelSpec:
    # attn_logit_softcapping is not asked for: transformers has the key and does nothing with it.
    return gemma_from_hf(
        fields,
        _NAME,
        _DEFAULTS,
        rotary=_global_rope,
        layers=_hf_layers,
        qk_norm="head",
        logit_softcap=fields.number_or_none("final_logit_softcapping"),
    )


def _from_hf_with_images(fields: Fields) -> ModelSpec:
    """The text part of a model that sees images too. No request to Octavo has one, so the rest is never needed."""
    fields.ignore(*_OF_IMAGES)
    text = fields.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise fields.refusal("text_config", text, "the configuration of the text part")
    tied = fields.flag("tie_word_embeddings", True)
    inner = Fields({**_TEXT_DEFAULTS, **text}, "config.json, text_config,")
    inner.only("model_type", "gemma3_text")
    inner.only("tie_word_embeddings", tied)
    spec = _from_hf(inner)
    inner.refuse_rest(HARMLESS)
    return replace(spec, architecture=_WITH_IMAGES, tie_word_embeddings=tied)


def _hf_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    fields.ignore("_sliding_window_pattern")  # transformers writes it and does not read it
    period = fields.integer("sliding_window_pattern", _PERIOD)
    return _layers(gemma_windows(fields, count, period), rope, _local_rope(fields, rope.dim))


def _layers(windows: list[int | None], whole: RopeSpec, local: RopeSpec) -> tuple[LayerSpec, ...]:
    return tuple(LayerSpec(window, whole if window is None else local) for window in windows)


def _global_rope(fields: Fields, head_dim: int, max_positions: int, default_theta: float) -> Rotary:
    """Of the layers that see all: ``rope_parameters`` by type of layer, or the older keys for one embedding."""
    own = {key: fields.get(key) for key in ("rope_theta", "rope_scaling", "partial_rotary_factor")}
    own["rope_parameters"] = _table(fields, "full_attention")
    return Rotary(rope_from_hf(Fields(own, fields.where), head_dim, max_positions, default_theta))


def _local_rope(fields: Fields, head_dim: int) -> RopeSpec:
    """Of the windowed layers; what scales the others does not touch them."""
    theta = fields.number("rope_local_base_freq", _LOCAL_THETA)
    max_positions = fields.integer("max_position_embeddings", _DEFAULTS.max_position_embeddings)
    own = {"rope_parameters": _table(fields, "sliding_attention")}
    return rope_from_hf(Fields(own, fields.where), head_dim, max_positions, theta)


def _table(fields: Fields, kind: str) -> Any:
    tables = fields.get("rope_parameters") or {}
    if not isinstance(tables, Mapping):
        raise fields.refusal("rope_parameters", tables, "a table of rotary settings for each type of layer")
    inner = Fields(tables, f"{fields.where}, rope_parameters,")
    found = {key: inner.get(key) for key in ("full_attention", "sliding_attention")}
    inner.refuse_rest()
    return found[kind]


def _gguf_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    windows = windows_from_gguf(fields, count, window_from_gguf(fields), _PERIOD)
    return _layers(windows, rope, RopeSpec(fields.number("rope.freq_base_swa", _LOCAL_THETA), rope.dim))


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return gemma_from_gguf(
        fields,
        extras,
        _NAME,
        layers=_gguf_layers,
        layers_of_27b=_LAYERS_OF_27B,
        qk_norm="head",
        logit_softcap=factor_or(fields, "final_logit_softcapping", None),
    )


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="gemma3_text",
    gguf_name="gemma3",
    example="Gemma 3 270M, 1B",
    features="five windowed layers to a full one, each kind with its own rotary base; normed q and k; GeGLU",
    refuses=("bidirectional attention", "soft caps of scores"),
    from_hf=_from_hf,
    hf_layer=GEMMA_HF_LAYER,
    from_gguf=_from_gguf,
    gguf_layer=GEMMA_GGUF_LAYER,
)

TEXT_OF_IMAGES = Architecture(
    name=_WITH_IMAGES,
    model_type="gemma3",
    gguf_name="gemma3",
    example="Gemma 3 4B, 12B, 27B",
    features="the text part of a model that sees images; its other weights are not read",
    refuses=("bidirectional attention", "soft caps of scores"),
    from_hf=_from_hf_with_images,
    hf_layer=GEMMA_HF_LAYER,
    hf_prefix="language_model.",
    hf_ignored=re.compile(r"^(vision_tower|multi_modal_projector)\."),
)
