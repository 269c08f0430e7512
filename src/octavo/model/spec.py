"""ModelSpec: a decoder described as data. The native core runs what it lists; nothing else knows architectures."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding with its scaling resolved (rotate-half convention, whole head).

    ``kind``: ``"default"``; ``"linear"`` divides every frequency by ``factor``; ``"llama3"`` divides the low ones
    by ``factor`` and blends between (Llama 3.1). Frequencies that depend on the current length do not exist here.
    """

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def inv_freq(self, head_dim: int) -> npt.NDArray[np.float32]:
        """Inverse frequencies, float32 ``[head_dim / 2]``, computed in float32 as transformers computes them."""
        exponent = np.arange(0, head_dim, 2, dtype=np.int64).astype(np.float32) / np.float32(head_dim)
        inv_freq = (np.float32(1.0) / np.power(np.float32(self.theta), exponent)).astype(np.float32)
        if self.kind == "linear":
            return (inv_freq / np.float32(self.factor)).astype(np.float32)
        if self.kind == "llama3":
            return self._llama3(inv_freq)
        return inv_freq

    def _llama3(self, inv_freq: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        context = self.original_max_position_embeddings
        wavelen = np.float32(2 * math.pi) / inv_freq
        longest, shortest = context / self.low_freq_factor, context / self.high_freq_factor
        smooth = (context / wavelen - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        scaled = np.where(wavelen > longest, inv_freq / self.factor, inv_freq)
        return np.where((wavelen >= shortest) & (wavelen <= longest), blended, scaled).astype(np.float32)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer. ``window``: keys a query sees, itself included; ``None`` for all."""

    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides what a forward pass computes, beside the weights.

    Shapes: ``q [num_heads * head_dim, hidden_size]``, ``k`` and ``v [num_kv_heads * head_dim, hidden_size]``,
    ``o [hidden_size, num_heads * head_dim]``, ``gate`` and ``up [intermediate_size, hidden_size]``, ``down
    [hidden_size, intermediate_size]``, ``embed`` and ``lm_head [vocab_size, hidden_size]``.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention_scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer groups, formed by window only, in order of first appearance: indices of the layers of each."""
        groups: dict[int | None, list[int]] = {}
        for index, layer in enumerate(self.layers):
            groups.setdefault(layer.window, []).append(index)
        return tuple(tuple(members) for members in groups.values())

    def digest(self) -> bytes:
        """SHA-256 of every field, stable across processes; part of a cache's namespace.

        ``max_position_embeddings`` and ``architecture`` do not change a value that is computed, so they stay out.
        """
        fields = asdict(self)
        del fields["architecture"], fields["max_position_embeddings"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).digest()
