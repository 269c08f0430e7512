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
from octavo.model.architecture import GgufExtras
from octavo.model.architectures.registry import architecture_named
from octavo.model.base import ModelSource, Tensor
from octavo.model.bfloat16 import to_bfloat16
from octavo.model.gguf_file import PLAIN_TYPES, GgufFile
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.slots import StoredAt, TensorKey, find_slots
from octavo.model.spec import ModelSpec

_FREQ_FACTORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")
_IGNORED = re.compile(r"^(" + "|".join(_FREQ_FACTORS) + r")\.weight$|attn_rot_embd\.weight$")
"""Rotary factors, which become part of the spec, and a buffer of old files that the metadata says too."""
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
        stored = self._file.tensors
        extras = GgufExtras(
            tie_word_embeddings="output.weight" not in stored,
            qkv_bias="blk.0.attn_q.bias" in stored,
            o_bias="blk.0.attn_output.bias" in stored,
            freq_factors=self._freq_factors(),
        )
        self.spec = spec_from_gguf(metadata, extras)
        self.eos_token_ids = _eos_token_ids(metadata, self.spec)
        self.chat_template = _chat_template(metadata)

    @property
    def needs_dequantising(self) -> bool:
        return any(tensor.type_id not in PLAIN_TYPES for tensor in self._file.tensors.values())

    def files(self) -> tuple[Path, ...]:
        return (self._file.path,)

    def check(self) -> None:
        self._file.check_data()
        self._slots  # noqa: B018  (found and checked once)

    def tensors(self) -> Iterator[Tensor]:
        self.check()
        heads = {"q": self.spec.num_heads, "k": self.spec.num_kv_heads}
        paired = architecture_named(self.spec.architecture).gguf_pairs_rows
        name, whole = "", np.empty(0, np.uint16)
        for (slot, layer), shape in self.spec.tensor_shapes().items():
            at = self._slots[slot, layer]
            if at.name != name:  # a tensor that holds several slots is read once
                name, whole = at.name, self._read(at.name, slot)
            bits = at.cut(whole, shape[0])
            part = slot.removesuffix("_bias")
            if paired and part in heads:
                bits = _rotate_half_order(bits, heads[part])
            yield Tensor(slot, layer, bits)

    @cached_property
    def _slots(self) -> dict[TensorKey, StoredAt]:
        names = architecture_named(self.spec.architecture).gguf_tensors
        stored = {name: tensor.shape for name, tensor in self._file.tensors.items()}
        return find_slots(str(self._file.path), self.spec, names, stored, _IGNORED)

    def _read(self, name: str, slot: str) -> npt.NDArray[np.uint16]:
        """One tensor; a norm's as the model stores it, for llama.cpp adds to it what the norm adds."""
        if not (slot.endswith("norm") and self.spec.norm_offset):
            return self._file.read(name)
        return to_bfloat16(np.array(self._file.read_floats(name), np.float32) - np.float32(self.spec.norm_offset))

    def _freq_factors(self) -> dict[str, list[float]]:
        stored = self._file.tensors
        return {name: self._file.read_floats(f"{name}.weight") for name in _FREQ_FACTORS if f"{name}.weight" in stored}


def _rotate_half_order(bits: npt.NDArray[np.uint16], heads: int) -> npt.NDArray[np.uint16]:
    """Undo llama.cpp's order of q and k rows: pairs (i, i + head_dim / 2) stand side by side there.

    ``[heads, head_dim / 2, 2, ...] -> [heads, 2, head_dim / 2, ...]``, seen as ``[rows, ...]``.
    """
    paired = bits.reshape(heads, bits.shape[0] // heads // 2, 2, -1)
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(bits.shape)


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
