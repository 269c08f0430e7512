"""A Hugging Face ``config.json`` -> :class:`ModelSpec`. Octavo refuses what it cannot do by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import Architecture
from octavo.model.architectures.registry import ARCHITECTURES
from octavo.model.fields import Fields
from octavo.model.spec import ModelSpec

# Keys that say something about training, bookkeeping or how to sample, and nothing about the forward pass.
# fmt: off
_HARMLESS = frozenset({
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


def spec_from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """Describe the model of a Hugging Face configuration.

    Every key is used, listed here as harmless, or refused unless its value switches nothing on. Defaults for
    missing keys are those of transformers' configuration classes.

    Raises:
        UnsupportedModelError: the configuration asks for something Octavo does not do; the message names it.
    """
    fields = Fields(config, "config.json")
    architecture = _architecture(fields)
    fields.only("is_causal", True)
    spec = architecture.from_hf(fields)
    fields.refuse_rest(_HARMLESS)
    return spec


def _architecture(fields: Fields) -> Architecture:
    names, model_type = fields.get("architectures"), fields.get("model_type")
    by_type = {architecture.model_type: architecture for architecture in ARCHITECTURES}
    by_name = {architecture.name: architecture for architecture in ARCHITECTURES}
    supported = ", ".join(by_name)
    if not names:
        found = by_type.get(model_type) if isinstance(model_type, str) else None
        names = [found.name if found else model_type]
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in by_name:
        raise UnsupportedModelError(f"architecture {name!r} is not supported; Octavo runs {supported}")
    if model_type is not None and model_type != by_name[name].model_type:
        raise UnsupportedModelError(
            f"config.json says architecture {name} but model_type {model_type!r}; Octavo runs {supported}"
        )
    return by_name[name]
