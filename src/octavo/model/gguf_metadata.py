"""GGUF metadata -> :class:`ModelSpec`. What Octavo cannot do is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.errors import UnsupportedModelError
from octavo.model.fields import Fields
from octavo.model.spec import MAX_LAYERS, LayerSpec, ModelSpec, RopeSpec

_ARCHITECTURES = {"llama": "LlamaForCausalLM"}
# Of the keys under the architecture's own name, those that leave the forward pass as it is.
_HARMLESS = frozenset(
    {"llama.tensor_data_layout", "llama.rope.scaling.finetuned", "llama.rope.scaling.original_context_length"}
)


def spec_from_gguf(
    metadata: Mapping[str, Any], *, tie_word_embeddings: bool, freq_factors: Sequence[float] | None = None
) -> ModelSpec:
    """Describe the model of a GGUF file.

    Args:
        metadata: every key of the file, as Python values.
        tie_word_embeddings: whether the file has no ``output.weight``; no key says it.
        freq_factors: values of the file's ``rope_freqs.weight``, if it has one (Llama 3.1 scaling).

    Every key under the architecture's own name is used, listed here as harmless, or refused unless its value
    switches nothing on. Keys elsewhere describe the tokenizer, the file's history or its authors.

    Raises:
        UnsupportedModelError: the file asks for something Octavo does not do; the message names it.
    """
    general = Fields(metadata, "the GGUF metadata")
    general.only("general.type", "model")
    general.only("split.count", 0, 1)
    name = general.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        supported = ", ".join(_ARCHITECTURES)
        raise UnsupportedModelError(f"GGUF architecture {name!r} is not supported; Octavo runs {supported}")
    fields = Fields(_float32_as_written(metadata), "the GGUF metadata", prefix=f"{name}.")
    layers = fields.integer("block_count", high=MAX_LAYERS)
    heads = _same_in_every_layer(fields, "attention.head_count", layers)
    hidden = fields.integer("embedding_length")
    head_dim = _head_dim(fields, hidden, heads)
    window = fields.integer("attention.sliding_window") if fields.get("attention.sliding_window") else None
    fields.only("attention.causal", True)
    fields.only("attention.scale", 0.0, float(str(np.float32(head_dim**-0.5))))
    for neutral in ("logit_scale", "residual_scale", "embedding_scale"):
        fields.only(neutral, 0.0, 1.0)
    spec = ModelSpec(
        architecture=_ARCHITECTURES[name],
        vocab_size=_vocab_size(fields, metadata),
        hidden_size=hidden,
        intermediate_size=_same_in_every_layer(fields, "feed_forward_length", layers),
        num_heads=heads,
        num_kv_heads=_same_in_every_layer(fields, "attention.head_count_kv", layers, heads),
        head_dim=head_dim,
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=tie_word_embeddings,
        max_position_embeddings=fields.integer("context_length"),
        rope=_rope(fields, head_dim, freq_factors),
        layers=(LayerSpec(window),) * layers,
    )
    fields.refuse_rest(_HARMLESS)
    return spec


def _float32_as_written(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF stores 1e-5 as the nearest float32; take it back to 1e-05, so that all files of a model agree."""
    with np.errstate(over="ignore"):
        return {
            key: float(str(np.float32(value))) if isinstance(value, float) else value
            for key, value in metadata.items()
            if not key.startswith("tokenizer.")
        }


def _same_in_every_layer(fields: Fields, key: str, layers: int, default: int | None = None) -> int:
    value = fields.get(key)
    if not isinstance(value, list):
        return fields.integer(key, default)
    if len(value) != layers or len(set(value)) != 1:
        raise fields.refusal(key, value, f"one value for all {layers} layers")
    return Fields({key: value[0]}, fields.where).integer(key)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
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
    fields.only("rope.dimension_count", head_dim)
    return head_dim


def _vocab_size(fields: Fields, metadata: Mapping[str, Any]) -> int:
    """The size the file states, or its number of tokens; a tokenizer with more tokens is refused."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else None
    size = fields.integer("vocab_size", count)
    if count is not None and count > size:
        raise UnsupportedModelError(f"the GGUF tokenizer has {count} tokens, the model only {size}")
    return size


def _rope(fields: Fields, head_dim: int, freq_factors: Sequence[float] | None) -> RopeSpec:
    theta = fields.number("rope.freq_base", 10_000.0)
    # As in llama.cpp: a factor without a type means linear, and scale_linear is the factor's older name.
    fields.only("rope.scaling.type", "none", "linear")
    fields.only("rope.scaling.attn_factor", 0.0, 1.0)
    kind = fields.get("rope.scaling.type") or "linear"
    given = [key for key in ("rope.scaling.factor", "rope.scale_linear") if fields.get(key)]
    factor = fields.number(given[0]) if given and kind == "linear" else 1.0
    if freq_factors is None:
        return RopeSpec(theta=theta) if factor == 1.0 else RopeSpec(theta=theta, kind="linear", factor=factor)
    if factor != 1.0:
        raise UnsupportedModelError(
            f"the GGUF file has both rope_freqs.weight and a linear rotary factor {factor}; Octavo does one"
        )
    factors = tuple(float(value) for value in freq_factors)
    if not all(np.isfinite(factors)) or min(factors, default=0.0) <= 0:
        raise UnsupportedModelError("rope_freqs.weight must hold finite numbers above 0")
    return RopeSpec(theta=theta, kind="factors", freq_factors=factors)
