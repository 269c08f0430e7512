"""ModelSpec: a decoder described as data. The native core runs it; nothing else knows architectures."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

from octavo.errors import UnsupportedModelError

MAX_LAYERS = 2**12
HEAD_DIM_MULTIPLE = 16
"""The native attention works on head dimensions that are a multiple of this."""
MAX_HEAD_DIM = 2**9
MAX_POSITIONS = 2**24
"""The native core counts positions in float32, which is exact up to here."""
MAX_INV_FREQ = 1e3
"""Most radians that a position turns by; cosines and sines of the products are computed without libm."""

Norms = Literal["pre", "post", "both"]
QkNorm = Literal["none", "head", "full"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (RoFormer, Su et al. 2021; rotate-half convention) with its scaling resolved.

    ``dim``: how many elements of a head are rotated, from its first. ``kind``: ``"default"``; ``"linear"`` divides
    every frequency by ``factor``; ``"llama3"`` divides the low ones by ``factor`` and blends between (Llama 3.1);
    ``"factors"`` divides each by its own of ``freq_factors`` (longrope, YaRN, and how a GGUF file writes down what
    Llama 3.1 does). ``scale`` multiplies cosines and sines (the attention factor of longrope and YaRN). Frequencies
    that depend on the current length do not exist here.
    """

    theta: float
    dim: int
    kind: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    freq_factors: tuple[float, ...] = ()
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_range("number of rotated elements of a head", self.dim, 2, MAX_HEAD_DIM)
        _check_multiple("number of rotated elements of a head", self.dim, 2)
        if self.kind == "factors" and len(self.freq_factors) != self.dim // 2:
            raise UnsupportedModelError(
                f"{self.dim} rotated elements need {self.dim // 2} rotary factors, not {len(self.freq_factors)}"
            )
        if not all(0 < factor < math.inf for factor in self.freq_factors):
            raise UnsupportedModelError("rotary factors must be finite numbers above 0")
        for name in ("theta", "factor", "scale"):
            if not 1e-30 <= getattr(self, name) <= 1e30:
                raise UnsupportedModelError(f"rotary {name} {getattr(self, name)} is beyond float32's reach")
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            raise UnsupportedModelError(
                f"rotary high_freq_factor must be a number more than low_freq_factor {self.low_freq_factor}, and that "
                f"above 0; the model has {self.high_freq_factor}"
            )
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                fastest = self.inv_freq().max()
        except FloatingPointError as error:
            raise UnsupportedModelError(f"rotary frequencies in float32 do not exist: {self} ({error})") from error
        if not fastest <= MAX_INV_FREQ:
            raise UnsupportedModelError(
                f"a rotary embedding may turn by {MAX_INV_FREQ:g} radians with each position at most; {self} turns "
                f"by {fastest:g}"
            )

    def inv_freq(self) -> npt.NDArray[np.float32]:
        """Inverse frequencies, float32 ``[dim / 2]``.

        Computed in float64 by Python's own power and rounded once, because they are part of a cache's namespace:
        float32 powers differ in the last bit from one processor and numpy to the next. transformers computes in
        float32, and agrees to a few units in the last place.
        """
        exponents = [-2 * i / self.dim for i in range(self.dim // 2)]
        inv_freq = np.array([float(self.theta) ** exponent for exponent in exponents])
        if self.kind == "linear":
            inv_freq /= self.factor
        elif self.kind == "llama3":
            inv_freq = self._llama3(inv_freq)
        elif self.kind == "factors":
            inv_freq /= np.array(self.freq_factors)
        return inv_freq.astype(np.float32)

    def digest(self) -> str:
        """What it does to a head, as text: equal for equal rotations, however they were written down."""
        return f"{self.inv_freq().tobytes().hex()}*{self.scale!r}"

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
    """What may differ between layers.

    ``window``: keys a query sees, itself included; ``None`` for all. ``rope``: ``None`` for a layer that does not
    rotate.
    """

    window: int | None = None
    rope: RopeSpec | None = None


@dataclass(frozen=True, slots=True)
class LongRope:
    """The rotary embedding of a model that has two: ``rope`` serves engines of more than ``above`` tokens."""

    above: int
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides what a forward pass computes, beside the weights.

    Shapes: ``q [num_heads * head_dim, hidden_size]``, ``k`` and ``v [num_kv_heads * head_dim, hidden_size]``,
    ``o [hidden_size, num_heads * head_dim]``, ``gate`` and ``up [intermediate_size, hidden_size]``, ``down
    [hidden_size, intermediate_size]``, ``embed`` and ``lm_head [vocab_size, hidden_size]``. A layer has two halves,
    attention and MLP, each of which reads the residual stream and adds to it::

        x = embed_scale * embed[token]
        x = x + residual_scale * post_norm(o(attention(q, k, v of pre_norm(x))))
        x = x + residual_scale * post_norm(down(activation(gate(h)) * up(h))),  h = pre_norm(x)
        logits = softcap(logit_scale * lm_head(final_norm(x)))

    A norm that the model does not have is the identity. ``norms``: which of the two each half has. A norm multiplies
    by its weight plus ``norm_offset``. ``qk_norm``: q and k are normed before they are rotated, each head by itself
    (``"head"``) or all heads at once (``"full"``). A score is ``attention_scale * q . k``. ``attention_softcap`` and
    ``logit_softcap``: a value x becomes ``cap * tanh(x / cap)``.

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
    layers: tuple[LayerSpec, ...]
    attention_scale: float
    norms: Norms = "pre"
    norm_offset: float = 0.0
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    activation: Activation = "silu"
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    long_rope: LongRope | None = None

    def __post_init__(self) -> None:
        _check_range("vocab_size", self.vocab_size, 1, 2**24)
        _check_range("hidden_size", self.hidden_size, 2, 2**17)
        _check_range("intermediate_size", self.intermediate_size, 2, 2**20)
        _check_range("number of attention heads", self.num_heads, 1, 2**12)
        _check_range("number of key-value heads", self.num_kv_heads, 1, self.num_heads)
        _check_range("head_dim", self.head_dim, HEAD_DIM_MULTIPLE, MAX_HEAD_DIM)
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
        for rope in self.ropes:
            _check_range("number of rotated elements of a head", rope.dim, 2, self.head_dim)
            if rope.dim != self.ropes[0].dim:
                raise UnsupportedModelError("all layers that rotate must rotate as many elements of a head")
        if not 0 <= self.norm_eps <= 1:
            raise UnsupportedModelError(f"norm_eps must lie between 0 and 1; the model has {self.norm_eps}")
        for name in ("attention_scale", "embed_scale", "residual_scale", "logit_scale"):
            _check_factor(name, getattr(self, name))
        for name in ("attention_softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                _check_factor(name, getattr(self, name))

    def at_length(self, max_model_len: int) -> ModelSpec:
        """The same model for requests of at most ``max_model_len`` tokens: the rotary embedding is settled.

        Longrope has one set of factors for short contexts and one for long ones; which one is decided here once, for
        all requests, because keys that were rotated differently cannot share a cache.
        """
        if self.long_rope is None:
            return self
        layers = self.layers
        if max_model_len > self.long_rope.above:
            layers = tuple(replace(layer, rope=layer.rope and self.long_rope.rope) for layer in layers)
        return replace(self, layers=layers, long_rope=None)

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different rotary embeddings of its layers, in order of first appearance."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        """Weights of all tensors, a tied embedding once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in bfloat16, as they run."""
        return 2 * self.num_parameters

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer groups: the indices of their layers, in order of first appearance of their window.

        Layers of one window form as few groups as keep all of a model about equally large: a block has room for the
        largest group, and what that wastes in the others may be an eighth of what all layers need.
        """
        by_window: dict[int | None, list[int]] = {}
        for index, layer in enumerate(self.layers):
            by_window.setdefault(layer.window, []).append(index)
        counts = [len(members) for members in by_window.values()]
        size = next(
            size
            for size in range(max(counts), 0, -1)
            if 8 * size * sum(-(-count // size) for count in counts) <= 9 * self.num_layers
        )
        return tuple(part for members in by_window.values() for part in _evenly(members, size))

    @property
    def group_windows(self) -> tuple[int | None, ...]:
        """The window of each layer group's layers; ``None`` where they see all keys."""
        return tuple(self.layers[members[0]].window for members in self.kv_groups)

    def tensor_shapes(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """Shape of every tensor the model needs, by (slot, layer), in packing order; layer -1 is no layer."""
        hidden, wide = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        per_layer: dict[str, tuple[int, ...]] = {}
        if self.norms != "post":
            per_layer |= {"attn_norm": (hidden,)}
        per_layer |= {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden)}
        if self.qkv_bias:
            per_layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
        if self.qk_norm != "none":
            whole = self.qk_norm == "full"
            per_layer |= {
                "q_norm": (queries if whole else self.head_dim,),
                "k_norm": (keys if whole else self.head_dim,),
            }
        per_layer |= {"o": (hidden, queries)}
        if self.o_bias:
            per_layer |= {"o_bias": (hidden,)}
        if self.norms != "pre":
            per_layer |= {"attn_post_norm": (hidden,)}
        if self.norms != "post":
            per_layer |= {"mlp_norm": (hidden,)}
        per_layer |= {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
        if self.norms != "pre":
            per_layer |= {"mlp_post_norm": (hidden,)}
        shapes: dict[tuple[str, int], tuple[int, ...]] = {("embed", -1): (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            shapes.update({(slot, layer): shape for slot, shape in per_layer.items()})
        shapes["final_norm", -1] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head", -1] = (self.vocab_size, hidden)
        return shapes

    def digest(self) -> bytes:
        """SHA-256 of every field, stable across processes; part of a cache's namespace.

        ``max_position_embeddings`` and ``architecture`` change no value that is computed, so they stay out. Of a
        rotary embedding the resolved frequencies count, bit for bit.
        """
        fields = asdict(self)
        del fields["architecture"], fields["max_position_embeddings"]
        fields["layers"] = [[layer.window, layer.rope and layer.rope.digest()] for layer in self.layers]
        fields["long_rope"] = self.long_rope and [self.long_rope.above, self.long_rope.rope.digest()]
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).digest()


class SpecChoices(TypedDict, total=False):
    """The fields of :class:`ModelSpec` in which architectures differ, for the readers of their files."""

    attention_scale: float
    norms: Norms
    norm_offset: float
    qk_norm: QkNorm
    qkv_bias: bool
    o_bias: bool
    activation: Activation
    attention_softcap: float | None
    logit_softcap: float | None
    embed_scale: float
    residual_scale: float
    logit_scale: float


def _evenly(members: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """As few parts of ``size`` at most as there can be, none more than one larger than another."""
    count, total = -(-len(members) // size), len(members)
    for part in range(count):
        yield tuple(members[part * total // count : (part + 1) * total // count])


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UnsupportedModelError(f"{name} must lie between {low} and {high}; the model has {value}")


def _check_factor(name: str, value: float) -> None:
    if not 1e-30 <= value <= 1e30:
        raise UnsupportedModelError(f"{name} must be a number above 0 within float32's reach; the model has {value}")


def _check_multiple(name: str, value: int, factor: int) -> None:
    if value % factor:
        raise UnsupportedModelError(f"{name} must be a multiple of {factor}; the model has {value}")
