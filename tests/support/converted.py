"""A GGUF file of a transformers model, its tensors named and stored as llama.cpp's converter does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_ARCHITECTURES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


def write_converted(
    path: Path, model: Any, metadata: Mapping[str, Any], factors: Mapping[str, list[float]] | None = None
) -> Path:
    """Write ``model`` in bfloat16, norms and biases in float32.

    Args:
        metadata: every key, ``general.architecture`` included.
        factors: rotary factors, by the name of their tensor.
    """
    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], model.config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = weight.float().numpy()
        kind = gguf.GGMLQuantizationType.F32 if array.ndim == 1 else gguf.GGMLQuantizationType.BF16
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, values in (factors or {}).items():
        writer.add_tensor(name, np.array(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders[type(value)](key, value)
