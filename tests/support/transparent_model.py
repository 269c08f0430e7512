"""A model whose keys and values follow from its weights by hand, so that the KV pool's bytes are known.

Embeddings of plus and minus one pass the norm unchanged, whole-number weights (times a power of two for each row) sum
without rounding, and layers that add nothing leave the same input to the next.
"""

from __future__ import annotations

import numpy as np


def factors(positions, inv_freq):
    """cos and sin ``[n, head_dim / 2]`` in float32: of the angle rounded to float32, evaluated in double."""
    angles = np.asarray(positions, np.float32)[:, None] * np.asarray(inv_freq, np.float32)
    return np.cos(angles.astype(np.float64)).astype(np.float32), np.sin(angles.astype(np.float64)).astype(np.float32)


class Transparent:
    """``native`` has the helpers of ``tests/native/conftest.py``, ``pool`` more arguments of its ``pool_of``.

    ``tensors`` replace weights, and ``changes`` parts of the shape.
    """

    def __init__(self, native, isa, *, block_size=32, threads=1, tensors=None, pool=None, **changes):
        self.block_size = block_size
        self.shape = shape = native.Shape(norm_eps=0.0, **changes)
        rng = np.random.default_rng(11)
        self.tensors = {}
        for (slot, layer), dims in shape.tensors.items():
            if slot in ("k", "v"):
                self.tensors[slot, layer] = rng.integers(-3, 4, dims)
            elif slot == "embed":
                self.tensors[slot, layer] = rng.choice([-1, 1], dims)
            elif slot in ("o", "down"):
                self.tensors[slot, layer] = np.zeros(dims)
        self.tensors |= tensors or {}
        self.model = native.model_of(shape, isa, threads=threads, tensors=self.tensors)
        self.pool = native.pool_of(shape, block_size=block_size, num_blocks=8, **(pool or {}))

    def forward(self, tokens, seq_len, tables, copies=()):
        logits = np.zeros((1, self.shape.vocab_size), np.float32)
        self.model.forward(
            self.pool,
            np.asarray(tokens, np.int32),
            np.asarray([0, len(tokens)], np.int32),
            np.asarray([seq_len], np.int32),
            np.asarray(tables, np.int32)[:, None],
            np.asarray(copies, np.int32).reshape(-1, 2),
            np.asarray([len(tokens) - 1], np.int32),
            logits,
        )
        return logits

    def expected(self, tokens, positions, layer):
        """Keys after RoPE and values, ``[heads, n, head_dim]`` float32."""
        x = self.tensors["embed", -1][np.asarray(tokens)].astype(np.float32)
        heads, dim = self.shape.num_kv_heads, self.shape.head_dim
        keys, values = (
            (x @ self.tensors[slot, layer].T.astype(np.float32)).reshape(-1, heads, dim).transpose(1, 0, 2)
            for slot in ("k", "v")
        )
        cos, sin = factors(positions, self.shape.inv_freq)
        first, second = keys[..., : dim // 2], keys[..., dim // 2 :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1), values
