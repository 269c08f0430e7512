"""The thread pool: any number of threads gives the same bits, none is lost, and all end with their model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def pass_of(native, shape, model, rng):
    """Logits and pool bytes of one ragged pass: a long prompt, a short one, and one token far into its sequence."""
    pool = native.pool_of(shape, block_size=16, num_blocks=64)
    queries = [150, 7, 1]
    n = sum(queries)
    logits = np.zeros((n, shape.vocab_size), np.float32)
    model.forward(
        pool,
        rng.integers(0, shape.vocab_size, n).astype(np.int32),
        np.cumsum([0, *queries]).astype(np.int32),
        np.asarray([150, 7, 300], np.int32),
        (1 + np.arange(60, dtype=np.int32)).reshape(1, 3, 20),
        np.zeros((0, 2), np.int32),
        np.arange(n, dtype=np.int32),
        logits,
    )
    return logits, b"".join(pool.block(b).tobytes() for b in range(64))


@pytest.mark.parametrize("threads", [2, 3, 16, 64])
def test_more_threads_than_processors_neither_hang_nor_change_a_bit(native, isa, threads):
    shape = native.Shape(hidden_size=64, intermediate_size=160)
    expected = pass_of(native, shape, native.model_of(shape, isa), np.random.default_rng(0))
    model = native.model_of(shape, isa, threads=threads)
    for _ in range(2 if threads > 3 else 20):
        logits, blocks = pass_of(native, shape, model, np.random.default_rng(0))
        assert np.array_equal(logits, expected[0])
        assert blocks == expected[1]


def running_threads():
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_threads_end_with_their_model(native):
    before = running_threads()
    model = native.model_of(native.Shape(), "generic", threads=20)
    assert running_threads() == before + 19
    del model
    assert running_threads() == before


def test_a_forked_process_is_told_that_it_has_no_threads():
    """The child must neither wait for threads that only the parent has, nor hang when it lets go of the model."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fork.py"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
