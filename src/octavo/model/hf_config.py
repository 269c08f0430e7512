"""A Hugging Face ``config.json`` -> :class:`ModelSpec`. Octavo refuses what it cannot do by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.model.fields import Fields
from octavo.model.spec import ARCHITECTURES, MAX_LAYERS, LayerSpec, ModelSpec, RopeSpec

_MODEL_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_MISTRAL_WINDOW = 4096
"""The window transformers assumes when a Mistral configuration has no ``sliding_window`` key at all."""

# Keys that say something about training, bookkeeping or how to sample, and nothing about the forward pass.
# fmt: off
_HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled",
    "_name_or_path", "attention_dropout", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "dtype", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
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


def spec_from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """Describe the model of a Hugging Face configuration.

    Every key is used, listed here as harmless, or refused unless its value switches nothing on. Defaults for
    missing keys are those of transformers' configuration classes.

    Raises:
        UnsupportedModelError: the configuration asks for something Octavo does not do; the message names it.
    """
    fields = Fields(config, "config.json")
    architecture = _architecture(fields)
    fields.only("hidden_act", "silu", "swish")
    fields.only("pretraining_tp", 1)
    fields.only("partial_rotary_factor", 1)
    fields.only("is_causal", True)
    mistral = architecture == "MistralForCausalLM"
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    max_position_embeddings = fields.integer("max_position_embeddings", 131072 if mistral else 2048)
    window = _window(fields, config) if mistral else None
    layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    _check_layer_types(fields, layers, window)
    spec = ModelSpec(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", _default_kv_heads(config, heads, mistral)),
        head_dim=_head_dim(fields, hidden, heads),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        max_position_embeddings=max_position_embeddings,
        rope=_rope(fields, max_position_embeddings),
        layers=(LayerSpec(window),) * layers,
    )
    fields.refuse_rest(_HARMLESS)
    return spec


def _architecture(fields: Fields) -> str:
    names, model_type = fields.get("architectures"), fields.get("model_type")
    if not names:
        names = [_MODEL_TYPES.get(model_type, model_type) if isinstance(model_type, str) else None]
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    supported = ", ".join(ARCHITECTURES)
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(f"architecture {name!r} is not supported; Octavo runs {supported}")
    if model_type is not None and (not isinstance(model_type, str) or _MODEL_TYPES.get(model_type) != name):
        raise UnsupportedModelError(
            f"config.json says architecture {name} but model_type {model_type!r}; Octavo runs {supported}"
        )
    return str(name)


def _default_kv_heads(config: Mapping[str, Any], heads: int, mistral: bool) -> int:
    return 8 if mistral and "num_key_value_heads" not in config else heads


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    if hidden % heads:
        raise UnsupportedModelError(
            f"config.json has no head_dim, and hidden_size {hidden} does not divide by {heads} heads"
        )
    return hidden // heads


def _window(fields: Fields, config: Mapping[str, Any]) -> int | None:
    if "sliding_window" in config and fields.get("sliding_window") is None:
        return None
    return fields.integer("sliding_window", _MISTRAL_WINDOW)


def _check_layer_types(fields: Fields, layers: int, window: int | None) -> None:
    wanted = "full_attention" if window is None else "sliding_attention"
    types = fields.get("layer_types")
    if types is not None and types != [wanted] * layers:
        raise fields.refusal("layer_types", types, f"{wanted} for each of {layers} layers")


def _rope(fields: Fields, max_position_embeddings: int) -> RopeSpec:
    """Rotary settings from the new ``rope_parameters``, the old ``rope_scaling`` or both if they agree."""
    theta = fields.get("rope_theta")
    found = []
    for key in ("rope_parameters", "rope_scaling"):
        table = fields.get(key)
        if table is None or table == {}:
            continue
        if not isinstance(table, Mapping):
            raise fields.refusal(key, table, "a table of rotary settings")
        found.append(_rope_table(Fields(table, f"config.json, {key},"), theta, max_position_embeddings))
    if not found:
        return RopeSpec(theta=fields.number("rope_theta", 10_000.0))
    if found[0] != found[-1]:
        raise UnsupportedModelError("config.json has both rope_parameters and rope_scaling, and they disagree")
    return found[0]


def _rope_table(table: Fields, outer_theta: Any, max_position_embeddings: int) -> RopeSpec:
    kind = table.get("rope_type")
    legacy = table.get("type")
    if kind is not None and legacy is not None and kind != legacy:
        raise UnsupportedModelError(f"{table.where} names two types, {kind!r} and {legacy!r}")
    kind = kind or legacy or "default"
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(
            f"{table.where} asks for rotary scaling of type {kind!r}; Octavo does default, linear and llama3"
        )
    table.only("partial_rotary_factor", 1)
    table.only("attention_factor", 1)
    theta = _theta(table, outer_theta)
    if kind == "default":
        table.only("factor", 1)
        rope = RopeSpec(theta=theta)
    elif kind == "linear":
        rope = RopeSpec(theta=theta, kind="linear", factor=table.number("factor"))
    else:
        rope = RopeSpec(
            theta=theta,
            kind="llama3",
            factor=table.number("factor"),
            low_freq_factor=table.number("low_freq_factor"),
            high_freq_factor=table.number("high_freq_factor"),
            original_max_position_embeddings=table.integer("original_max_position_embeddings", max_position_embeddings),
        )
        if rope.high_freq_factor <= rope.low_freq_factor:
            raise table.refusal("high_freq_factor", rope.high_freq_factor, "more than low_freq_factor")
    table.refuse_rest()
    return rope


def _theta(table: Fields, outer: Any) -> float:
    inner = table.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        raise UnsupportedModelError(f"{table.where} says rope_theta {inner!r}, config.json itself {outer!r}")
    if inner is None and outer is not None:
        return Fields({"rope_theta": outer}, "config.json").number("rope_theta")
    return table.number("rope_theta", 10_000.0)
