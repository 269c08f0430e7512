"""Tiny models, pools and calls of the native core, for its own tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder small enough to build a thousand times."""

    vocab_size: int = 101
    hidden_size: int = 32
    intermediate_size: int = 48
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    tie_word_embeddings: bool = True
    windows: tuple[int, ...] = (0, 0)
    norm_eps: float = 1e-5
    theta: float = 10000.0

    @property
    def inv_freq(self) -> npt.NDArray[np.float32]:
        exponent = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        return np.asarray(np.float32(1) / np.power(np.float32(self.theta), exponent), np.float32)

    @property
    def tensors(self) -> dict[tuple[str, int], tuple[int, ...]]:
        hidden, wide = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[tuple[str, int], tuple[int, ...]] = {
            ("embed", -1): (self.vocab_size, hidden),
            ("final_norm", -1): (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head", -1] = (self.vocab_size, hidden)
        for layer in range(len(self.windows)):
            shapes["attn_norm", layer] = shapes["mlp_norm", layer] = (hidden,)
            shapes["q", layer], shapes["o", layer] = (queries, hidden), (hidden, queries)
            shapes["k", layer] = shapes["v", layer] = (keys, hidden)
            shapes["gate", layer] = shapes["up", layer] = (wide, hidden)
            shapes["down", layer] = (hidden, wide)
        return shapes


def to_bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """The bits of finite numbers rounded to bfloat16, nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def model_of(
    shape: Shape,
    isa: str,
    *,
    threads: int = 1,
    tensors: Mapping[tuple[str, int], npt.ArrayLike] | None = None,
) -> _native.Model:
    """A model of that shape: ``tensors`` where given, else norms of one and small random matrices."""
    model = _native.Model(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        norm_eps=shape.norm_eps,
        attention_scale=shape.head_dim**-0.5,
        tie_word_embeddings=shape.tie_word_embeddings,
        inv_freq=shape.inv_freq[None],
        windows=list(shape.windows),
        isa=isa,
        threads=threads,
    )
    rng = np.random.default_rng(7)
    for (slot, layer), dims in shape.tensors.items():
        values = np.ones(dims) if len(dims) == 1 else rng.normal(0, 0.3, dims)
        values = (tensors or {}).get((slot, layer), values)
        model.set_tensor(slot, layer, to_bf16(np.broadcast_to(values, dims)))
    return model


def pool_of(
    shape: Shape,
    *,
    block_size: int = 16,
    num_blocks: int = 8,
    key_formats: Sequence[str] | None = None,
    value_formats: Sequence[str] | None = None,
) -> _native.KVPool:
    """A pool for such a model; layers with the same window form a group. Formats are those of the layers."""
    windows = list(dict.fromkeys(shape.windows))
    group = [windows.index(window) for window in shape.windows]
    return _native.KVPool(
        group_sizes=[group.count(g) for g in range(len(windows))],
        layer_group=group,
        layer_index=[group[:layer].count(g) for layer, g in enumerate(group)],
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
        key_formats=key_formats,
        value_formats=value_formats,
    )


class Samples(NamedTuple):
    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]


def _int32(values: object) -> npt.NDArray[np.int32]:
    return np.asarray(values, np.int32)


def draw(model: _native.Model, logits: npt.ArrayLike, requests: Sequence[Mapping[str, Any]]) -> Samples:
    """``Model.sample`` for requests that name only what they change.

    Keys: ``row, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed,
    choice, position, num_top``; ``prompt`` and ``output`` (token ids), ``bias`` (token: value), ``allowed``
    (token ids of a bitmask).
    """
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    neutral = {
        "row": 0,
        "temperature": 1,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
    }
    neutral |= {"frequency_penalty": 0, "seed": 0, "choice": 0, "position": 0, "num_top": -1}

    def column(name: str, dtype: Any) -> npt.NDArray[Any]:
        return np.fromiter((r.get(name, neutral[name]) for r in requests), dtype, len(requests))

    def ragged(slices: list[list[Any]]) -> tuple[npt.NDArray[np.int32], list[Any]]:
        starts = _int32([0, *accumulate(map(len, slices))])
        return starts, [x for part in slices for x in part]

    prompt_starts, prompt = ragged([list(r.get("prompt", ())) for r in requests])
    output_starts, output = ragged([list(r.get("output", ())) for r in requests])
    bias_starts, bias = ragged([list(r.get("bias", {}).items()) for r in requests])
    masks = [r["allowed"] for r in requests if "allowed" in r]
    words = (logits.shape[1] + 31) // 32
    bits = np.zeros((len(masks), words * 32), np.uint8)
    for row, allowed in enumerate(masks):
        bits[row, list(allowed)] = 1
    numbers = iter(range(len(masks)))
    return Samples(
        *model.sample(
            logits,
            column("row", np.int32),
            column("temperature", np.float32),
            column("top_k", np.int32),
            column("top_p", np.float32),
            column("min_p", np.float32),
            column("repetition_penalty", np.float32),
            column("presence_penalty", np.float32),
            column("frequency_penalty", np.float32),
            column("seed", np.uint64),
            column("choice", np.int32),
            column("position", np.int32),
            prompt_starts,
            _int32(prompt),
            output_starts,
            _int32(output),
            bias_starts,
            _int32([token for token, _ in bias]),
            np.asarray([value for _, value in bias], np.float32),
            _int32([next(numbers) if "allowed" in r else -1 for r in requests]),
            np.packbits(bits, axis=1, bitorder="little").view(np.int32).reshape(len(masks), words),
            column("num_top", np.int32),
        )
    )


Sampler = Callable[[npt.ArrayLike, Sequence[Mapping[str, Any]]], Samples]


@pytest.fixture(scope="session")
def native() -> Any:
    """The helpers of this file, for tests, which cannot import it."""

    class Helpers:
        Shape = Shape
        model_of = staticmethod(model_of)
        pool_of = staticmethod(pool_of)
        draw = staticmethod(draw)
        to_bf16 = staticmethod(to_bf16)
        from_bf16 = staticmethod(from_bf16)

    return Helpers


@pytest.fixture(scope="session")
def make_sampler() -> Callable[..., Sampler]:
    """A function from (vocabulary size, instruction set, threads) to a sampler; models are kept."""
    models: dict[tuple[int, str, int], _native.Model] = {}

    def make(vocab: int, isa: str, threads: int = 1) -> Sampler:
        key = (vocab, isa, threads)
        if key not in models:
            models[key] = model_of(Shape(vocab_size=vocab, windows=(0,)), isa, threads=threads)
        return lambda logits, requests: draw(models[key], logits, requests)

    return make
