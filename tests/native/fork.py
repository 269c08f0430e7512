"""Run by test_threads.py in a process of its own: a model made before a fork, used and dropped after it."""

from __future__ import annotations

import gc
import os
import signal

import numpy as np

from octavo import _native


def make(threads):
    return _native.Model(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=48,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        norm_eps=1e-5,
        attention_scale=0.25,
        tie_word_embeddings=True,
        inv_freq=np.ones((1, 8), np.float32),
        windows=[0],
        isa="generic",
        threads=threads,
    )


pool = _native.KVPool(
    group_sizes=[1], layer_group=[0], layer_index=[0], num_kv_heads=1, head_dim=16, block_size=16, num_blocks=2
)
one = np.ones(1, np.int32)
arguments = (pool, one, np.asarray([0, 1], np.int32), one, one.reshape(1, 1, 1), np.zeros((0, 2), np.int32))
arguments = (*arguments, np.zeros(1, np.int32), np.zeros((1, 20), np.float32))
models = {threads: make(threads) for threads in (1, 3)}
for model in models.values():
    model.forward(*arguments)

child = os.fork()
if child == 0:
    signal.alarm(20)
    models[1].forward(*arguments)  # has no other threads to miss
    try:
        models[3].forward(*arguments)
    except RuntimeError as error:
        assert "made before a fork" in str(error), error
    else:
        raise AssertionError("a pass over threads that do not exist came to an end")
    make(3).forward(*arguments)
    del model
    models.clear()
    gc.collect()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, f"the child ended with status {status}"
models[3].forward(*arguments)
