"""GGUF files of transformers' models as llama.cpp's converter writes them: its keys, its names, its order of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Metadata = dict[str, Any]


def _nothing(config: Any) -> Metadata:
    return {}


@dataclass(frozen=True)
class Family:
    """What the converter does with one kind of model.

    ``like_llama``: it is converted as a Llama is: rows of q and k that rotate together stand side by side, and the
    sizes of vocabulary and rotation are written down. ``own_keys``: without the architecture's name in front; ``None``
    for a key that is left out. ``norm_offset``: what a norm adds to its weight; the file holds the sum.
    """

    like_llama: bool = False
    own_keys: Callable[[Any], Metadata] = _nothing
    norm_offset: float = 0.0


def _granite(config: Any) -> Metadata:
    return {
        "attention.scale": float(config.attention_multiplier),
        "embedding_scale": float(config.embedding_multiplier),
        "residual_scale": float(config.residual_multiplier),
        "logit_scale": float(config.logits_scaling),
    }


def _phi3(config: Any) -> Metadata:
    rotary, first = config.rope_parameters, config.original_max_position_embeddings
    keys: Metadata = {
        "rope.scaling.original_context_length": first,
        "rope.dimension_count": int(rotary["partial_rotary_factor"] * config.hidden_size) // config.num_attention_heads,
        "attention.sliding_window": config.sliding_window or 0,
    }
    if "long_factor" in rotary:
        longer = config.max_position_embeddings / first
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(longer) / math.log(first))
    return keys


def _gemma2(config: Any) -> Metadata:
    return {
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": None,
    }


def _gemma3(config: Any) -> Metadata:
    return {
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }


FAMILIES: dict[str, Family] = {
    "llama": Family(like_llama=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma2": Family(own_keys=_gemma2, norm_offset=1.0),
    "gemma3": Family(own_keys=_gemma3, norm_offset=1.0),
    "phi3": Family(own_keys=_phi3),
    "olmo2": Family(),
    "smollm3": Family(like_llama=True),
    "granite": Family(like_llama=True, own_keys=_granite),
}
"""By ``general.architecture``."""


def metadata_of(config: Any) -> Metadata:
    """The metadata that the converter makes of a transformers configuration, and a tokenizer of nameless tokens."""
    name = config.model_type.removesuffix("_text")
    family = FAMILIES[name]
    rotary = config.rope_parameters.get("full_attention", config.rope_parameters)
    head_dim = getattr(config, "head_dim", None)
    keys: Metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(rotary["rope_theta"]),
    }
    if rotary["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rotary["rope_type"], "rope.scaling.factor": float(rotary["factor"])}
    if rotary["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rotary["original_max_position_embeddings"]
    if head_dim is not None:
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if family.like_llama:
        rotated = head_dim or config.hidden_size // config.num_attention_heads
        keys |= {"vocab_size": config.vocab_size, "rope.dimension_count": rotated}
    keys |= family.own_keys(config)
    tokens = [f"<{i}>" for i in range(config.vocab_size)]
    return {
        "general.architecture": name,
        **{f"{name}.{key}": value for key, value in keys.items() if value is not None},
        "tokenizer.ggml.tokens": tokens,
    }


def write_gguf(
    model: Any,
    path: Path,
    metadata: Metadata | None = None,
    *,
    storage: str = "BF16",
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a model of transformers to a GGUF file, its matrices stored as ``storage``, its vectors in float32.

    ``metadata`` instead of those that the converter would make, ``extra`` tensors beside those that it has.
    """
    metadata = metadata_of(model.config) if metadata is None else metadata
    writer = gguf.GGUFWriter(str(path), metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, array in _tensors(model, metadata["general.architecture"]):
        kind = gguf.GGMLQuantizationType[storage if array.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = weight.float().numpy()
        name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        part = name.split(".")[-2]
        if part.endswith("norm"):
            array = array + np.float32(FAMILIES[architecture].norm_offset)
        yield name, _paired(array, heads[part]) if FAMILIES[architecture].like_llama and part in heads else array
    for length in ("long", "short"):
        factors = config.rope_parameters.get(f"{length}_factor")
        if factors is not None:
            yield f"rope_factors_{length}.weight", np.array(factors, np.float32)


def _paired(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows i and i + head_dim / 2 of each head side by side: ``[heads, 2, head_dim / 2, ...]``, turned."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
