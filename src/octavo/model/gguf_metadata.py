"""GGUF metadata -> :class:`ModelSpec`. What Octavo cannot do is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.architectures.registry import ARCHITECTURES
from octavo.model.fields import Fields, float32_as_written
from octavo.model.spec import ModelSpec

# Of the keys under the architecture's own name, those that leave the forward pass as it is.
_HARMLESS = ("tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length")


def spec_from_gguf(metadata: Mapping[str, Any], extras: GgufExtras) -> ModelSpec:
    """Describe the model of a GGUF file.

    Args:
        metadata: every key of the file, as Python values.
        extras: what the file says outside it; ``num_tokens`` is read here.

    Every key under the architecture's own name is used, listed here as harmless, or refused unless its value
    switches nothing on. Keys elsewhere describe the tokenizer, the file's history or its authors.

    Raises:
        UnsupportedModelError: the file asks for something Octavo does not do; the message names it.
    """
    general = Fields(metadata, "the GGUF metadata")
    general.only("general.type", "model")
    general.only("split.count", 0, 1)
    name = general.get("general.architecture")
    readers = {a.gguf_name: a.from_gguf for a in ARCHITECTURES if a.from_gguf is not None}
    if not isinstance(name, str) or name not in readers:
        supported = ", ".join(readers)
        raise UnsupportedModelError(f"GGUF architecture {name!r} is not supported; Octavo runs {supported}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    extras = replace(extras, num_tokens=len(tokens) if isinstance(tokens, list) else None)
    fields = Fields(_as_written(metadata), "the GGUF metadata", prefix=f"{name}.")
    fields.only("attention.causal", True)
    spec = readers[name](fields, extras)
    fields.refuse_rest([f"{name}.{key}" for key in _HARMLESS])
    return spec


def _as_written(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as they were before GGUF stored them, so that all files of a model agree."""
    return {
        key: float32_as_written(value) if isinstance(value, float) else value
        for key, value in metadata.items()
        if not key.startswith("tokenizer.")
    }
