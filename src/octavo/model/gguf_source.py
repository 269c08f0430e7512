"""A model in one GGUF file, tokenizer and chat template included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import UnsupportedModelError
from octavo.model.base import ModelSource, Tensor, TensorKey, TensorNames, check_names, check_shape
from octavo.model.gguf_file import PLAIN_TYPES, GgufFile
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.spec import ModelSpec

TENSOR_NAMES = TensorNames(
    whole_model={"token_embd.weight": "embed", "output_norm.weight": "final_norm", "output.weight": "lm_head"},
    layer=re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)"),
    per_layer={
        "attn_norm.weight": "attn_norm",
        "attn_q.weight": "q",
        "attn_k.weight": "k",
        "attn_v.weight": "v",
        "attn_output.weight": "o",
        "ffn_norm.weight": "mlp_norm",
        "ffn_gate.weight": "gate",
        "ffn_up.weight": "up",
        "ffn_down.weight": "down",
    },
)
_ROPE_FREQS = "rope_freqs.weight"
_RECOMPUTED = "attn_rot_embd.weight"
"""A buffer that old files store; the metadata says the same, so it is not read."""
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class GgufSource(ModelSource):
    """A GGUF file.

    Args:
        path: the file; its header is read at once.
        name: what the user called the model.

    Raises:
        WeightsError: the file is missing or damaged.
        UnsupportedModelError: it asks for what Octavo does not do.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.location = path
        self._file = GgufFile(path)
        metadata = self._file.metadata
        self.tokenizer_source = metadata
        self.spec = spec_from_gguf(
            metadata,
            tie_word_embeddings="output.weight" not in self._file.tensors,
            freq_factors=self._freq_factors(),
        )
        self.eos_token_ids = _eos_token_ids(metadata, self.spec)
        self.chat_template = _chat_template(metadata)

    @property
    def needs_dequantising(self) -> bool:
        return any(tensor.type_id not in PLAIN_TYPES for tensor in self._file.tensors.values())

    def files(self) -> tuple[Path, ...]:
        return (self._file.path,)

    def check(self) -> None:
        self._file.check_data()
        shapes = self.spec.tensor_shapes()
        for key, name in self._names.items():
            check_shape(str(self._file.path), name, self._file.tensors[name].shape, shapes[key])

    def tensors(self) -> Iterator[Tensor]:
        self.check()
        heads = {"q": self.spec.num_heads, "k": self.spec.num_kv_heads}
        for slot, layer in self.spec.tensor_shapes():
            bits = self._file.read(self._names[slot, layer])
            if slot in heads:
                bits = _rotate_half_order(bits, heads[slot])
            yield Tensor(slot, layer, bits)

    @cached_property
    def _names(self) -> dict[TensorKey, str]:
        """The name of each tensor of the spec; complete, and nothing is left over."""
        found: dict[TensorKey, str] = {}
        unknown: list[str] = []
        for name in self._file.tensors:
            key = TENSOR_NAMES.key(name)
            if key is not None:
                found[key] = name
            elif name != _ROPE_FREQS and not name.endswith(_RECOMPUTED):
                unknown.append(name)
        check_names(str(self._file.path), self.spec, found, unknown)
        return found

    def _freq_factors(self) -> list[float] | None:
        if _ROPE_FREQS not in self._file.tensors:
            return None
        return self._file.read_floats(_ROPE_FREQS)


def _rotate_half_order(bits: npt.NDArray[np.uint16], heads: int) -> npt.NDArray[np.uint16]:
    """Undo llama.cpp's order of q and k rows: pairs (i, i + head_dim / 2) stand side by side there.

    ``[heads, head_dim / 2, 2, hidden] -> [heads, 2, head_dim / 2, hidden]``, seen as ``[rows, hidden]``.
    """
    rows, hidden = bits.shape
    paired = bits.reshape(heads, rows // heads // 2, 2, hidden)
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows, hidden)


def _eos_token_ids(metadata: dict[str, Any], spec: ModelSpec) -> tuple[int, ...]:
    """End of sequence, of turn and of message: any of them ends a reply."""
    ids = []
    for key in _EOS_KEYS:
        token = metadata.get(f"tokenizer.ggml.{key}")
        if token is None:
            continue
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < spec.vocab_size:
            raise UnsupportedModelError(
                f"tokenizer.ggml.{key} {token!r} is not a token of the vocabulary, 0 to {spec.vocab_size - 1}"
            )
        ids.append(token)
    return tuple(dict.fromkeys(ids))


def _chat_template(metadata: dict[str, Any]) -> str | dict[str, str] | None:
    default, prefix = "tokenizer.chat_template", "tokenizer.chat_template."
    templates: dict[str, str] = {}
    for key, text in metadata.items():
        if key != default and not key.startswith(prefix):
            continue
        if not isinstance(text, str):
            raise UnsupportedModelError(f"{key} is not a text")
        templates["default" if key == default else key.removeprefix(prefix)] = text
    return templates["default"] if list(templates) == ["default"] else templates or None
