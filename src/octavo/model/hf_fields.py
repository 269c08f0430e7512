"""What the configurations of dense models in transformers have in common, read the same way for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import Layers
from octavo.model.fields import Fields
from octavo.model.rotary import Rotary, yarn, yarn_scale
from octavo.model.spec import MAX_LAYERS, Activation, LayerSpec, ModelSpec, RopeSpec, SpecChoices

T = TypeVar("T")

# fmt: off
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled",
    "_name_or_path", "attention_dropout", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "is_llama_config", "label2id", "length_penalty", "max_length", "max_sequence_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "resid_pdrop", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
})
# fmt: on
"""Keys that say something about training, bookkeeping or how to sample, and nothing about the forward pass."""


@dataclass(frozen=True, slots=True)
class HfDefaults:
    """What transformers takes for keys that a configuration leaves out.

    ``num_kv_heads``: ``None`` for as many as there are heads. ``head_dim``: ``None`` for hidden size / heads.
    """

    max_position_embeddings: int = 2048
    num_kv_heads: int | None = None
    head_dim: int | None = None
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: float = 10_000.0


ReadRotary = Callable[[Fields, int, int, float], Rotary]
"""(configuration, head_dim, max_position_embeddings, default theta) -> the rotary embedding."""


def spec_from_hf_fields(
    fields: Fields,
    architecture: str,
    defaults: HfDefaults,
    *,
    layers: Layers | None = None,
    rotary: ReadRotary | None = None,
    activation_key: str = "hidden_act",
    **choices: Unpack[SpecChoices],
) -> ModelSpec:
    """Read what all have in common; ``choices`` are further fields of :class:`ModelSpec`, which win.

    Without ``layers`` all have full attention and rotate. ``rotary`` reads the rotary embedding, by default one that
    :func:`rope_from_hf` finds.

    Raises:
        UnsupportedModelError: a key is missing, or its value cannot be followed.
    """
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_dim = _head_dim(fields, hidden, heads, defaults.head_dim)
    max_positions = fields.integer("max_position_embeddings", defaults.max_position_embeddings)
    count = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    found = (rotary or _one_rope)(fields, head_dim, max_positions, defaults.rope_theta)
    described: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_heads": heads,
        # A key that is there and null means as many as heads, in every one of transformers' classes.
        "num_kv_heads": fields.integer_or_none("num_key_value_heads", defaults.num_kv_heads or heads) or heads,
        "head_dim": head_dim,
        "norm_eps": fields.number("rms_norm_eps", defaults.norm_eps),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", defaults.tie_word_embeddings),
        "max_position_embeddings": max_positions,
        "attention_scale": head_dim**-0.5,
        "activation": _activation(fields, activation_key),
        "layers": (layers or _full_attention)(fields, count, found.rope),
        "long_rope": found.long,
    }
    described.update(choices)
    return ModelSpec(**described)


class AttentionBiases(TypedDict):
    """Those fields of :class:`ModelSpec`."""

    qkv_bias: bool
    o_bias: bool


def attention_biases(fields: Fields) -> AttentionBiases:
    """``attention_bias``, which most families have for all four projections, and none by default."""
    bias = fields.flag("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias}


def rope_from_hf(fields: Fields, head_dim: int, max_positions: int, default_theta: float) -> RopeSpec:
    """The rotary embedding of a family that has one, and rotates whole heads."""
    outer = fields.get("rope_theta")
    fields.only("partial_rotary_factor", 1)
    found = [
        rope_from_table(table, theta_of(table, outer, default_theta), head_dim, max_positions)
        for table in rope_tables(fields)
    ]
    return agreed(found) or RopeSpec(theta=fields.number("rope_theta", default_theta), dim=head_dim)


def rope_tables(fields: Fields) -> list[Fields]:
    """The rotary settings that are there: the new ``rope_parameters``, the old ``rope_scaling``, or both."""
    found = []
    for key in ("rope_parameters", "rope_scaling"):
        table = fields.get(key)
        if table is None or table == {}:
            continue
        if not isinstance(table, Mapping):
            raise fields.refusal(key, table, "a table of rotary settings")
        found.append(Fields(table, f"config.json, {key},"))
    return found


def agreed(found: Sequence[T]) -> T | None:
    """What all tables of rotary settings say; ``None`` if there is no table."""
    if any(other != found[0] for other in found):
        raise UnsupportedModelError("config.json has both rope_parameters and rope_scaling, and they disagree")
    return found[0] if found else None


def rope_from_table(table: Fields, theta: float, dim: int, original: int, *, share: float = 1) -> RopeSpec:
    """One table of rotary settings; every key of it is understood.

    Args:
        dim: how many elements of a head are rotated; ``share`` is which part of the head that is.
        original: the context that the model had first, unless the table says it.
    """
    kind = rope_type(table)
    table.only("partial_rotary_factor", share)
    if kind != "yarn":
        table.only("attention_factor", 1)
    if kind == "default":
        table.only("factor", 1)
        rope = RopeSpec(theta=theta, dim=dim)
    elif kind == "linear":
        rope = RopeSpec(theta=theta, dim=dim, kind="linear", factor=table.number("factor"))
    elif kind == "llama3":
        rope = RopeSpec(
            theta=theta,
            dim=dim,
            kind="llama3",
            factor=table.number("factor"),
            low_freq_factor=table.number("low_freq_factor"),
            high_freq_factor=table.number("high_freq_factor"),
            original_max_position_embeddings=table.integer("original_max_position_embeddings", original),
        )
    elif kind == "yarn":
        rope = _yarn(table, theta, dim, original)
    else:
        raise UnsupportedModelError(
            f"{table.where} asks for rotary scaling of type {kind!r}; Octavo does default, linear, llama3 and yarn"
        )
    table.refuse_rest()
    return rope


def _yarn(table: Fields, theta: float, dim: int, original: int) -> RopeSpec:
    factor = table.number("factor")
    numerator, denominator = (table.number(key) if table.get(key) else None for key in ("mscale", "mscale_all_dim"))
    scale = yarn_scale(factor)
    if numerator is not None and denominator is not None:
        scale = yarn_scale(factor, numerator) / yarn_scale(factor, denominator)
    return yarn(
        theta,
        dim,
        factor=factor,
        original=table.integer("original_max_position_embeddings", original),
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        truncate=table.flag("truncate", True),
        scale=table.number("attention_factor", scale),
    )


def rope_type(table: Fields, older: Mapping[str, str] | None = None) -> Any:
    """The type of scaling, by its new name or its old one. ``older``: names that a family had for types."""
    kind, legacy = (_renamed(table.get(key), older or {}) for key in ("rope_type", "type"))
    if kind is not None and legacy is not None and kind != legacy:
        raise UnsupportedModelError(f"{table.where} names two types, {kind!r} and {legacy!r}")
    return kind or legacy or "default"


def theta_of(table: Fields, outer: Any, default: float) -> float:
    """The base of the frequencies: in the table, or beside it as ``outer``."""
    inner = table.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        raise UnsupportedModelError(f"{table.where} says rope_theta {inner!r}, config.json itself {outer!r}")
    if inner is None and outer is not None:
        return Fields({"rope_theta": outer}, "config.json").number("rope_theta")
    return table.number("rope_theta", default)


def windows_from_hf(fields: Fields, count: int, window: int | None, default_types: list[str]) -> list[int | None]:
    """Each layer's window, from ``layer_types`` or, where it is missing, ``default_types``."""
    types = fields.get("layer_types") or default_types
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != count or not all(isinstance(t, str) and t in known for t in types):
        raise fields.refusal("layer_types", types, f"full_attention or sliding_attention for each of {count} layers")
    if window is None and "sliding_attention" in types:
        raise UnsupportedModelError("config.json has layers of sliding_attention, but no sliding_window that is used")
    return [known[kind] for kind in types]


def check_layer_types(fields: Fields, wanted: list[str]) -> None:
    """Refuse ``layer_types`` that differ from what the architecture's other keys say."""
    types = fields.get("layer_types")
    if types is not None and types != wanted:
        kinds = " and ".join(dict.fromkeys(wanted))
        raise fields.refusal("layer_types", types, f"{kinds} for its {len(wanted)} layers, as its other keys say")


def _full_attention(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    check_layer_types(fields, ["full_attention"] * count)
    return (LayerSpec(None, rope),) * count


def _one_rope(fields: Fields, head_dim: int, max_positions: int, default_theta: float) -> Rotary:
    return Rotary(rope_from_hf(fields, head_dim, max_positions, default_theta))


def _head_dim(fields: Fields, hidden: int, heads: int, default: int | None) -> int:
    if fields.get("head_dim") is not None or default is not None:
        return fields.integer("head_dim", default)
    if hidden % heads:
        raise UnsupportedModelError(
            f"config.json has no head_dim, and hidden_size {hidden} does not divide by {heads} heads"
        )
    return hidden // heads


def _renamed(name: Any, older: Mapping[str, str]) -> Any:
    return older.get(name, name) if isinstance(name, str) else name


def _activation(fields: Fields, key: str) -> Activation:
    known: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    name = fields.get(key) or ("silu" if key == "hidden_act" else "gelu_pytorch_tanh")
    if not isinstance(name, str) or name not in known:
        raise fields.refusal(key, name, " or ".join(known))
    return known[name]
