"""Run by test_binding.py in a process of its own: what happens when memory for threads and weights runs out."""

from __future__ import annotations

import resource

import numpy as np

from octavo import _native

MODEL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
}
MODEL |= {
    "norm_eps": 1e-5,
    "attention_scale": 0.25,
    "tie_word_embeddings": True,
    "inv_freq": np.ones((1, 8), np.float32),
}
MODEL |= {"windows": [0], "isa": "generic"}

resource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2)  # each thread asks for a stack of several MiB
try:
    _native.Model(**MODEL, threads=256)
except RuntimeError as error:
    assert "threads is 256, but the system grants no more than" in str(error), error
else:
    raise AssertionError("256 threads within 600 MiB: the limit was not felt")
try:
    _native.Model(**MODEL | {"vocab_size": 1 << 20, "hidden_size": 1024}, threads=1)
except MemoryError:
    pass
else:
    raise AssertionError("2 GiB of weights within 600 MiB")
assert _native.Model(**MODEL, threads=2).threads == 2
