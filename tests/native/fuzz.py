"""Run by test_binding.py in a process of its own: random arguments for every function of the native core.

Each argument of a good call is damaged with some chance: another dtype, another shape, wild values. Every call
must return or raise one of the binding's own errors.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from octavo import _native

VOCAB, HIDDEN, BLOCKS = 67, 32, 6
WILD = [-(2**31), -17, -2, -1, 0, 1, 2, 5, 6, 15, 16, 17, 63, 64, 65, 66, 67, 68, 4096, 2**24, 2**31 - 1]
WILD_FLOATS = [0, 1, -1, np.nan, np.inf, -np.inf, 1e-45, 1e38, -3e38, 0.5]
EXPECTED = (ValueError, TypeError, RuntimeError, MemoryError)


def good_forward(rng, pool):
    seqs = int(rng.integers(1, 4))
    queries, cached = rng.integers(1, 20, seqs), rng.integers(0, 20, seqs)
    n = int(queries.sum())
    return [
        pool,
        rng.integers(0, VOCAB, n).astype(np.int32),
        np.asarray([0, *np.cumsum(queries)], np.int32),
        (queries + cached).astype(np.int32),
        rng.integers(1, BLOCKS, (2, seqs, 3)).astype(np.int32),
        rng.integers(1, BLOCKS, (int(rng.integers(3)), 2)).astype(np.int32),
        rng.integers(0, n, 2).astype(np.int32),
        np.zeros((2, VOCAB), np.float32),
    ]


def good_score(rng):
    s = int(rng.integers(0, 70))
    return [np.zeros(s, np.int32), rng.integers(0, VOCAB, s).astype(np.int32), int(rng.integers(0, VOCAB))]


def good_sample(rng):
    s = int(rng.integers(0, 9))

    def flat():
        lengths = rng.integers(0, 5, s)
        return np.asarray([0, *np.cumsum(lengths)], np.int32), rng.integers(0, VOCAB, int(lengths.sum())).astype(
            np.int32
        )

    bias_starts, bias = flat()
    return [
        rng.choice([*WILD_FLOATS, *range(20)], (3, VOCAB)).astype(np.float32),
        rng.integers(0, 3, s).astype(np.int32),
        rng.choice([0, 0.5, 1, 1e-39, np.inf], s).astype(np.float32),
        rng.choice([0, 1, 2, 66, 67, 68, 2**31 - 1], s).astype(np.int32),
        rng.choice([0, 0.5, 1], s).astype(np.float32),
        rng.choice([0, 0.5, 1], s).astype(np.float32),
        rng.choice([1, 0.1, 1e-45, 1e38], s).astype(np.float32),
        rng.choice([0, 1, -3e38], s).astype(np.float32),
        rng.choice([0, 1, 3e38], s).astype(np.float32),
        rng.integers(0, 2**63, s).astype(np.uint64),
        rng.choice(WILD, s).astype(np.int32),
        rng.choice(WILD, s).astype(np.int32),
        *flat(),
        *flat(),
        bias_starts,
        bias,
        rng.choice([0, 1, np.inf, -np.inf, 3e38], len(bias)).astype(np.float32),
        rng.integers(-1, 2, s).astype(np.int32),
        rng.integers(-(2**31), 2**31, (2, 3)).astype(np.int32),
        rng.choice([-1, 0, 5, VOCAB], s).astype(np.int32),
    ]


def good_model(rng):
    """Of any features; the shapes of its matrices are always the same."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "norm_eps": 1e-5,
        "attention_scale": 0.25,
        "tie_word_embeddings": True,
        "inv_freq": np.ones((2, int(rng.integers(1, 9))), np.float32),
        "windows": [0, 1, 20],
        "layer_rotaries": [0, -1, 1],
        "rotary_scales": [1.0, 1.5],
        "pre_norm": True,
        "post_norm": bool(rng.integers(2)),
        "norm_offset": 1.0,
        "qk_norm": str(rng.choice(["none", "head", "full"])),
        "qkv_bias": bool(rng.integers(2)),
        "o_bias": bool(rng.integers(2)),
        "activation": str(rng.choice(["silu", "gelu_tanh"])),
        "attention_softcap": float(rng.choice([0, 1e-30, 2.5, 1e30])),
        "logit_softcap": float(rng.choice([0, 1e-30, 2.5, 1e30])),
        "embed_scale": 5.7,
        "residual_scale": 0.3,
        "logit_scale": 0.2,
        "isa": "generic",
        "threads": 1,
    }


def good_pool():
    return {
        "group_sizes": [2, 1],
        "layer_group": [0, 0, 1],
        "layer_index": [0, 1, 0],
        "num_kv_heads": 2,
        "head_dim": 16,
        "block_size": 16,
        "num_blocks": BLOCKS,
    }


def damaged(rng, value):
    """Something else than value, of a kind that a mistaken caller might pass."""
    kind = int(rng.integers(8))
    if not isinstance(value, np.ndarray):
        odd = [None, "x", 1.5, -1, 0, 2**31 - 1, 2**31, -(2**31), 2**70, [], [-1], [2**31 - 1] * 3, [0] * 50, b"", True]
        return odd[int(rng.integers(len(odd)))]
    if kind == 0:
        with np.errstate(invalid="ignore"):
            return value.astype(
                rng.choice([np.int8, np.int64, np.float64, np.float32, np.int32, np.uint64, np.complex64])
            )
    if kind == 1:
        return np.resize(value, tuple(rng.integers(0, 5, int(rng.integers(0, 4)))))
    if kind == 2 and value.ndim:
        return value[..., ::-1] if rng.integers(2) else value[..., : value.shape[-1] // 2]
    if kind == 3:
        return np.concatenate([value, value]) if value.ndim else value
    if kind == 4:
        return [None, value.tolist(), "x", 3][int(rng.integers(4))]
    value = value.copy()
    if value.size:  # the commonest: the right kind of array with some wild values
        limits = None if value.dtype.kind == "f" else np.iinfo(value.dtype)
        wild = [w for w in WILD if limits.min <= w <= limits.max] if limits else WILD_FLOATS
        for _ in range(int(rng.integers(1, 4))):
            value.flat[int(rng.integers(value.size))] = wild[int(rng.integers(len(wild)))]
    return value


def main(isa: str, rounds: int, threads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outcomes: Counter[str] = Counter()
    model = _native.Model(**good_model(rng) | {"isa": isa, "threads": 1})
    pool = _native.KVPool(**good_pool())
    tensors = [
        ("embed", -1, (VOCAB, HIDDEN)),
        ("q", 0, (64, HIDDEN)),
        ("down", 1, (HIDDEN, 48)),
        ("k", 2, (32, HIDDEN)),
        ("q_norm", 0, (16,)),
        ("k_norm", 1, (32,)),
        ("v_bias", 2, (32,)),
        ("o_bias", 1, (HIDDEN,)),
        ("mlp_post_norm", 2, (HIDDEN,)),
    ]

    def attempt(name, call, arguments):
        chance = rng.choice([0, 0.06, 0.3])
        if isinstance(arguments, dict):
            arguments = {k: damaged(rng, v) if rng.random() < chance else v for k, v in arguments.items()}
        else:
            arguments = [damaged(rng, v) if rng.random() < chance else v for v in arguments]
        try:
            call(**arguments) if isinstance(arguments, dict) else call(*arguments)
        except EXPECTED as error:
            outcomes[f"{name} {type(error).__name__}"] += 1
        else:
            outcomes[f"{name} returned"] += 1

    for _ in range(rounds):
        attempt("forward", model.forward, good_forward(rng, pool))
        attempt("score", model.score, good_score(rng))
        attempt("sample", model.sample, good_sample(rng))
        slot, layer, shape = tensors[int(rng.integers(len(tensors)))]
        attempt("set_tensor", model.set_tensor, [slot, layer, rng.integers(0, 2**16, shape).astype(np.uint16)])
        if rng.integers(10) == 0:
            attempt("Model", _native.Model, good_model(rng))
            attempt("KVPool", _native.KVPool, good_pool())
        attempt("block", pool.block, [int(rng.integers(-2, BLOCKS + 2))])
    assert not pool.block(0).any(), "the null block was written"
    for name in ("forward", "score", "sample", "set_tensor", "block", "Model", "KVPool"):
        assert outcomes[f"{name} returned"], f"no call of {name} was a good one"
        assert outcomes[f"{name} ValueError"], f"no call of {name} was refused"
    print(dict(sorted(outcomes.items())))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
