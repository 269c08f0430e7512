"""ModelSpec: a decoder described as data. The native core runs it; nothing else knows architectures."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.errors import UnsupportedModelError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""What :class:`ModelSpec` can describe so far, by the names transformers gives them."""
MAX_LAYERS = 2**12
HEAD_DIM_MULTIPLE = 16
"""The native attention works on head dimensions that are a multiple of this."""
MAX_POSITIONS = 2**24
"""The native core counts positions in float32, which is exact up to here."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding with its scaling resolved (rotate-half convention, whole head).

    ``kind``: ``"default"``; ``"linear"`` divides every frequency by ``factor``; ``"llama3"`` divides the low
    ones by ``factor`` and blends between (Llama 3.1); ``"factors"`` divides each by its own of
    ``freq_factors``, which is how a GGUF file writes the same thing down. Frequencies that depend on the
    current length do not exist here.
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    freq_factors: tuple[float, ...] = ()

    def inv_freq(self, head_dim: int) -> npt.NDArray[np.float32]:
        """Inverse frequencies, float32 ``[head_dim / 2]``.

        Computed in float64 by Python's own power and rounded once, because they are part of a cache's namespace:
        float32 powers differ in the last bit from one processor and numpy to the next. transformers computes in
        float32, and agrees to a few units in the last place.
        """
        exponents = [-2 * i / head_dim for i in range(head_dim // 2)]
        inv_freq = np.array([float(self.theta) ** exponent for exponent in exponents])
        if self.kind == "linear":
            inv_freq /= self.factor
        elif self.kind == "llama3":
            inv_freq = self._llama3(inv_freq)
        elif self.kind == "factors":
            inv_freq /= np.array(self.freq_factors)
        return inv_freq.astype(np.float32)

    def _llama3(self, inv_freq: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        context = self.original_max_position_embeddings
        wavelen = 2 * math.pi / inv_freq
        longest, shortest = context / self.low_freq_factor, context / self.high_freq_factor
        smooth = (context / wavelen - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        scaled = np.where(wavelen > longest, inv_freq / self.factor, inv_freq)
        return np.where((wavelen >= shortest) & (wavelen <= longest), blended, scaled)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ between layers. ``window``: keys a query sees, itself included; ``None`` for all."""

    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides what a forward pass computes, beside the weights.

    Shapes: ``q [num_heads * head_dim, hidden_size]``, ``k`` and ``v [num_kv_heads * head_dim, hidden_size]``,
    ``o [hidden_size, num_heads * head_dim]``, ``gate`` and ``up [intermediate_size, hidden_size]``, ``down
    [hidden_size, intermediate_size]``, ``embed`` and ``lm_head [vocab_size, hidden_size]``.

    Raises:
        UnsupportedModelError: on construction, if the native core cannot run such a model.
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

    def __post_init__(self) -> None:
        _check_range("vocab_size", self.vocab_size, 1, 2**24)
        _check_range("hidden_size", self.hidden_size, 2, 2**17)
        _check_range("intermediate_size", self.intermediate_size, 2, 2**20)
        _check_range("number of attention heads", self.num_heads, 1, 2**12)
        _check_range("number of key-value heads", self.num_kv_heads, 1, self.num_heads)
        _check_range("head_dim", self.head_dim, HEAD_DIM_MULTIPLE, 2**9)
        _check_range("number of layers", self.num_layers, 1, MAX_LAYERS)
        _check_range("max_position_embeddings", self.max_position_embeddings, 1, MAX_POSITIONS)
        _check_multiple("hidden_size", self.hidden_size, 2)
        _check_multiple("intermediate_size", self.intermediate_size, 2)
        _check_multiple("head_dim", self.head_dim, HEAD_DIM_MULTIPLE)
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        for layer in self.layers:
            if layer.window is not None:
                _check_range("sliding window", layer.window, 1, 2**31 - 1)
        factors = self.rope.freq_factors
        if self.rope.kind == "factors" and len(factors) != self.head_dim // 2:
            raise UnsupportedModelError(
                f"head_dim {self.head_dim} needs {self.head_dim // 2} rotary factors, not {len(factors)}"
            )
        for name in ("theta", "factor"):
            if not 1e-30 <= getattr(self.rope, name) <= 1e30:
                raise UnsupportedModelError(f"rotary {name} {getattr(self.rope, name)} is beyond float32's reach")
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                self.rope.inv_freq(self.head_dim)
        except FloatingPointError as error:
            raise UnsupportedModelError(f"rotary frequencies in float32 do not exist: {self.rope} ({error})") from error

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        """Weights of all tensors, a tied embedding once; each takes two bytes in memory."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer groups, formed by window only, in order of first appearance: the indices of their layers."""
        groups: dict[int | None, list[int]] = {}
        for index, layer in enumerate(self.layers):
            groups.setdefault(layer.window, []).append(index)
        return tuple(tuple(members) for members in groups.values())

    def tensor_shapes(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """Shape of every tensor the model needs, by (slot, layer), in packing order; layer -1 is no layer."""
        hidden, wide = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        per_layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "q": (queries, hidden),
            "k": (keys, hidden),
            "v": (keys, hidden),
            "o": (hidden, queries),
            "mlp_norm": (hidden,),
            "gate": (wide, hidden),
            "up": (wide, hidden),
            "down": (hidden, wide),
        }
        shapes: dict[tuple[str, int], tuple[int, ...]] = {("embed", -1): (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            shapes.update({(slot, layer): shape for slot, shape in per_layer.items()})
        shapes["final_norm", -1] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head", -1] = (self.vocab_size, hidden)
        return shapes

    def digest(self) -> bytes:
        """SHA-256 of every field, stable across processes; part of a cache's namespace.

        ``max_position_embeddings`` and ``architecture`` change no value that is computed, so they stay out. Of the
        rotary embedding the resolved frequencies count, bit for bit.
        """
        fields = asdict(self)
        del fields["architecture"], fields["max_position_embeddings"]
        fields["rope"] = self.rope.inv_freq(self.head_dim).tobytes().hex()
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).digest()


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UnsupportedModelError(f"{name} must lie between {low} and {high}; the model has {value}")


def _check_multiple(name: str, value: int, factor: int) -> None:
    if value % factor:
        raise UnsupportedModelError(f"{name} must be a multiple of {factor}; the model has {value}")
