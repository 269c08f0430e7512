"""What GGUF metadata of dense models have in common, read the same way for all of them."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras, Layers
from octavo.model.fields import Fields, float32_as_written
from octavo.model.rotary import Rotary, longrope, yarn
from octavo.model.spec import MAX_LAYERS, LayerSpec, ModelSpec, RopeSpec, SpecChoices

Default = TypeVar("Default", float, None)

_LINEAR_FACTORS = ("rope.scaling.factor", "rope.scale_linear")
"""The key, and its older name."""


def spec_from_gguf_fields(
    fields: Fields,
    extras: GgufExtras,
    architecture: str,
    *,
    layers: Layers | None = None,
    rotary_dim: int | None = None,
    **choices: Unpack[SpecChoices],
) -> ModelSpec:
    """Read what all have in common; ``choices`` are further fields of :class:`ModelSpec`, which win.

    Without ``layers`` all are alike, with the window that ``attention.sliding_window`` states. ``rotary_dim``: what
    ``rope.dimension_count`` must say; by default the whole head.

    Raises:
        UnsupportedModelError: a key is missing, or its value cannot be followed.
    """
    count = fields.integer("block_count", high=MAX_LAYERS)
    heads = _same_in_every_layer(fields, "attention.head_count", count)
    head_dim = head_dim_of(fields, heads)
    for key, name in (("logit_scale",) * 2, ("residual_scale",) * 2, ("embedding_scale", "embed_scale")):
        if name not in choices:
            fields.only(key, 0.0, 1.0)
    described: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": _vocab_size(fields, extras.num_tokens),
        "hidden_size": fields.integer("embedding_length"),
        "intermediate_size": _same_in_every_layer(fields, "feed_forward_length", count),
        "num_heads": heads,
        "num_kv_heads": _same_in_every_layer(fields, "attention.head_count_kv", count, heads),
        "head_dim": head_dim,
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": extras.tie_word_embeddings,
        "qkv_bias": extras.qkv_bias,
        "o_bias": extras.o_bias,
        "max_position_embeddings": fields.integer("context_length"),
    }
    if "attention_scale" not in choices:
        fields.only("attention.scale", 0.0, float32_as_written(head_dim**-0.5))
        described["attention_scale"] = head_dim**-0.5
    fields.only("rope.dimension_count", rotary_dim or head_dim)
    rotary = _rotary(fields, extras, rotary_dim or head_dim)
    described["layers"] = (layers or _layers_alike)(fields, count, rotary.rope)
    described["long_rope"] = rotary.long
    described.update(choices)
    return ModelSpec(**described)


def factor_or(fields: Fields, key: str, default: Default) -> float | Default:
    """A factor. 0 says, as a missing key does, that it is not given, and ``default`` stands: as in llama.cpp."""
    return fields.number(key) if fields.get(key) else default


def head_dim_of(fields: Fields, heads: int) -> int:
    """The size of a head: ``attention.key_length``, or the hidden size over the heads."""
    hidden = fields.integer("embedding_length")
    if fields.get("attention.key_length") is not None:
        head_dim = fields.integer("attention.key_length")
    elif hidden % heads:
        raise UnsupportedModelError(
            f"the GGUF metadata gives no attention.key_length, and embedding_length {hidden} does not divide "
            f"by {heads} attention heads"
        )
    else:
        head_dim = hidden // heads
    fields.only("attention.value_length", head_dim)
    return head_dim


def window_from_gguf(fields: Fields) -> int | None:
    """``attention.sliding_window``; 0 and a missing key mean none."""
    return fields.integer("attention.sliding_window") if fields.get("attention.sliding_window") else None


def windows_from_gguf(fields: Fields, count: int, window: int | None, period: int) -> list[int | None]:
    """Each layer's window: ``attention.sliding_window_pattern`` says a flag for each layer or which period counts.

    By default, every ``period``-th layer sees all.
    """
    key = "attention.sliding_window_pattern"
    flags = fields.get(key)
    if not isinstance(flags, list):
        period = fields.integer(key, period)
        return [window if (layer + 1) % period else None for layer in range(count)]
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise fields.refusal(key, flags, f"true or false for each of {count} layers")
    return [window if flag else None for flag in flags]


def _layers_alike(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    return (LayerSpec(window_from_gguf(fields), rope),) * count


def _rotary(fields: Fields, extras: GgufExtras, dim: int) -> Rotary:
    """The rotary embedding of a file, or the two of one with factors for short and for long contexts."""
    short, long = (extras.freq_factors.get(f"rope_factors_{name}") for name in ("short", "long"))
    if short is None and long is None:
        return Rotary(_rope(fields, extras, dim))
    if short is None or long is None or "rope_freqs" in extras.freq_factors:
        raise UnsupportedModelError(
            f"the GGUF file has {' and '.join(f'{name}.weight' for name in extras.freq_factors)}; Octavo needs "
            "rope_factors_short.weight and rope_factors_long.weight, or rope_freqs.weight alone"
        )
    fields.only("rope.scaling.type", "none", "linear", "longrope")
    for key in _LINEAR_FACTORS:
        fields.only(key, 0.0, 1.0)
    return longrope(
        fields.number("rope.freq_base", 10_000.0),
        dim,
        short=short,
        long=long,
        original=fields.integer("rope.scaling.original_context_length"),
        scale=factor_or(fields, "rope.scaling.attn_factor", 1.0),
    )


def _rope(fields: Fields, extras: GgufExtras, dim: int) -> RopeSpec:
    """The rotary embedding of a file that has one: plain, linear, YaRN, or with a factor for each frequency."""
    theta = fields.number("rope.freq_base", 10_000.0)
    # As in llama.cpp: a factor without a type means linear.
    fields.only("rope.scaling.type", "none", "linear", "yarn")
    fields.only("rope.scaling.attn_factor", 0.0, 1.0)
    kind = fields.get("rope.scaling.type") or "linear"
    given = [key for key in _LINEAR_FACTORS if fields.get(key)]
    factor = fields.number(given[0]) if given and kind != "none" else 1.0
    factors = extras.freq_factors.get("rope_freqs")
    if factors is None and kind == "yarn":
        return _yarn(fields, theta, dim, factor)
    if factors is None:
        return RopeSpec(theta=theta, dim=dim, kind="default" if factor == 1.0 else "linear", factor=factor)
    if factor != 1.0:
        raise UnsupportedModelError(
            f"the GGUF file has both rope_freqs.weight and a {kind} rotary factor {factor}; Octavo does one"
        )
    return RopeSpec(theta=theta, dim=dim, kind="factors", freq_factors=tuple(map(float, factors)))


def _yarn(fields: Fields, theta: float, dim: int, factor: float) -> RopeSpec:
    """YaRN as both llama.cpp and transformers do it; the former follows other settings for a few families only."""
    rope = yarn(
        theta,
        dim,
        factor=factor,
        original=fields.integer("rope.scaling.original_context_length", fields.integer("context_length")),
    )
    for key, usual in (
        ("ext_factor", 1.0),
        ("attn_factor", float32_as_written(rope.scale)),
        ("beta_fast", 32.0),
        ("beta_slow", 1.0),
    ):
        fields.only(f"rope.scaling.yarn_{key}", usual)
    return rope


def _same_in_every_layer(fields: Fields, key: str, layers: int, default: int | None = None) -> int:
    value = fields.get(key)
    if not isinstance(value, list):
        return fields.integer(key, default)
    if len(value) != layers or len(set(value)) != 1:
        raise fields.refusal(key, value, f"one value for all {layers} layers")
    return Fields({key: value[0]}, fields.where).integer(key)


def _vocab_size(fields: Fields, num_tokens: int | None) -> int:
    """The size the file states, or its number of tokens; a tokenizer with more tokens is refused."""
    size = fields.integer("vocab_size", num_tokens)
    if num_tokens is not None and num_tokens > size:
        raise UnsupportedModelError(f"the GGUF tokenizer has {num_tokens} tokens, the model only {size}")
    return size
