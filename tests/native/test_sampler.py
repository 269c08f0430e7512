"""The sampler against the definitions of its steps, in numpy and in transformers' own warpers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from octavo import _native

ISAS = _native.supported_isas()
every_isa = pytest.mark.parametrize("isa", ISAS)
INF, NAN = np.inf, np.nan


def softmax(logits):
    logits = np.asarray(logits, np.float64)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def survivors(logits, temperature, top_k, top_p, min_p):
    """Which tokens transformers leaves, in the order in which it chains its warpers."""
    scores = torch.tensor(np.asarray(logits, np.float64) / temperature)[None]
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p > 0:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return scores[0].numpy() > -np.inf


def chi_square_accepts(counts, probabilities):
    """Whether counts could come from probabilities: a chance below one in a million of a false alarm."""
    expected = probabilities * counts.sum()
    pooled = expected < 5  # the approximation needs a few of each
    observed = np.append(counts[~pooled], counts[pooled].sum())
    expected = np.append(expected[~pooled], expected[pooled].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic, freedom = float(np.sum((observed - expected) ** 2 / expected)), len(expected) - 1
    # Wilson and Hilferty (1931): the cube root of a chi-square over its freedom is nearly normal.
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5 < 4.75


# Greedy ---------------------------------------------------------------------------------------------------------------


@every_isa
def test_greedy_takes_the_best_and_ties_go_to_the_lower_id(make_sampler, isa):
    sampler = make_sampler(77, isa)
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, (200, 77)).astype(np.float32)  # seven values: every row has ties
    drawn = sampler(logits, [{"row": row, "temperature": 0} for row in range(200)])
    assert np.array_equal(drawn.token_ids, logits.argmax(1))


@every_isa
def test_top_k_of_one_is_greedy_at_any_temperature(make_sampler, isa):
    logits = [0.0, 5.0, 5.0, 1.0]
    drawn = make_sampler(4, isa)(logits, [{"top_k": 1, "temperature": 9, "seed": s} for s in range(20)])
    assert set(drawn.token_ids) == {1}


@every_isa
@pytest.mark.parametrize("where", [0, 3, 20, 76])
def test_a_nan_is_a_banned_token_wherever_it_stands(make_sampler, isa, where):
    sampler = make_sampler(77, isa)
    logits = np.linspace(-2, 2, 77, dtype=np.float32)[::-1].copy()
    best = 0 if where else 1
    logits[where] = NAN
    drawn = sampler(logits, [{"temperature": 0}, *({"temperature": 0.01, "seed": s} for s in range(20))])
    assert drawn.token_ids[0] == best
    assert where not in drawn.token_ids
    reference = softmax(np.delete(logits, where))
    counts = np.bincount(sampler(logits, [{"seed": s} for s in range(3000)]).token_ids, minlength=77)
    assert counts[where] == 0
    assert chi_square_accepts(np.delete(counts, where), reference)


# Filters --------------------------------------------------------------------------------------------------------------

distinct_logits = st.lists(st.integers(-400, 400), min_size=2, max_size=40, unique=True).map(
    lambda values: np.asarray(values, np.float32) / 32
)


@every_isa
@settings(max_examples=30)
@given(
    logits=distinct_logits,
    temperature=st.sampled_from([0.3, 1.0, 2.5, 40.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 0.0001]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.4, 1.0]),
)
def test_what_is_drawn_is_what_transformers_leaves(make_sampler, isa, logits, temperature, top_k, top_p, min_p):
    """Top-k, then top-p over what is left, then min-p against the best, each at the tempered probabilities.

    At the very edge of a filter rounding decides, so a token is required only if a slightly stricter filter
    keeps it, and allowed if a slightly wider one does.
    """
    edge = 1e-4 if top_p < 1 else 0
    required = survivors(logits, temperature, top_k, top_p * (1 - edge), min(1, min_p * 1.0001))
    allowed = survivors(logits, temperature, top_k, min(1, top_p * (1 + edge)), min_p * 0.9999)
    assert not np.any(required & ~allowed)
    vocab, count = len(logits), 1000
    request = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    drawn = make_sampler(vocab, isa)(logits, [request | {"seed": s} for s in range(count)]).token_ids
    counts = np.bincount(drawn, minlength=vocab)
    assert np.all(allowed[counts > 0])
    probabilities = softmax(np.where(allowed, logits / temperature, -INF))
    surely_seen = required & (probabilities * count > 30)
    assert np.all(counts[surely_seen] > 0)
    if np.array_equal(required, allowed) and allowed.sum() > 1:
        assert chi_square_accepts(counts, probabilities)


@every_isa
def test_of_equals_at_the_edge_of_top_k_the_lower_ids_stay(make_sampler, isa):
    logits = np.zeros(50)
    logits[40] = 1
    drawn = make_sampler(50, isa)(logits, [{"top_k": 4, "seed": s} for s in range(300)])
    assert set(drawn.token_ids) == {0, 1, 2, 40}


@every_isa
@pytest.mark.parametrize("kind", ["distinct", "ties", "gaps"])
@pytest.mark.parametrize("top_k", [2, 30, 39, 40, 70])
def test_top_k_of_a_large_vocabulary_is_the_k_best(make_sampler, isa, kind, top_k):
    """So hot that all that are left are drawn alike; with ties at the edge; with whole stretches banned or NaN."""
    vocab, rng = 5000, np.random.default_rng(top_k)
    logits = rng.normal(0, 3, vocab).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "gaps":
        logits[:700], logits[1500:4800:2], logits[4900:] = NAN, -INF, NAN
    best = sorted(np.flatnonzero(logits > -INF), key=lambda token: (-logits[token], token))[:top_k]
    requests = [{"temperature": 1e5, "top_k": top_k, "seed": s} for s in range(40 * top_k)]
    assert set(make_sampler(vocab, isa)(logits, requests).token_ids) == set(best)


@every_isa
def test_a_nucleus_of_hundreds_of_tokens_is_whole(make_sampler, isa):
    """Nearly flat logits: nine tenths of the probability are nine tenths of the tokens."""
    vocab = 400
    logits = np.random.default_rng(1).permutation(vocab).astype(np.float32) / vocab
    kept = survivors(logits, 1.0, 0, 0.9, 0.0)
    drawn = make_sampler(vocab, isa)(logits, [{"top_p": 0.9, "seed": s} for s in range(10000)])
    counts = np.bincount(drawn.token_ids, minlength=vocab)
    edge = np.argsort(-logits)[kept.sum() - 2 : kept.sum() + 2]  # rounding may decide about these
    counts[edge] = 0
    kept[edge] = False
    assert not counts[~kept].any()
    assert chi_square_accepts(counts, softmax(np.where(kept, logits, -INF)))


@every_isa
@pytest.mark.parametrize("temperature", [1e-45, 1e-39, 3e-39, 4e-39, 5e-39, 1e-30, 1e-6])
def test_a_vanishing_temperature_is_greedy(make_sampler, isa, temperature):
    logits = [1.0, 3.0, 2.0, 3.0, -1.0]
    requests = [{"temperature": temperature, "seed": s} for s in range(50)]
    drawn = make_sampler(5, isa)(logits, requests)
    assert set(drawn.token_ids) <= {1, 3}  # the two best are equal at any temperature above zero
    filtered = make_sampler(5, isa)(logits, [r | {"top_p": 0.5} for r in requests])
    assert set(filtered.token_ids) <= {1, 3}


# Penalties, bias, bitmask ---------------------------------------------------------------------------------------------


def changed_logits(sampler, vocab, logits, request):
    """What the sampler makes of logits, as ratios to the best token: read off from which draws it allows.

    A bias that lifts one other token is searched until greedy turns from the best to it.
    """
    best = int(sampler(logits, [request | {"temperature": 0}]).token_ids[0])
    bias = request.get("bias", {})
    low, high = np.zeros(vocab), np.full(vocab, 64.0)
    for _ in range(20):
        middle = (low + high) / 2
        tries = [
            request | {"temperature": 0, "bias": bias | {token: bias.get(token, 0) + float(middle[token])}}
            for token in range(vocab)
        ]
        won = sampler(logits, tries).token_ids == np.arange(vocab)
        low, high = np.where(won, low, middle), np.where(won, middle, high)
    high[best] = 0
    return -high


@every_isa
@settings(max_examples=15)
@given(
    logits=distinct_logits.filter(lambda x: len(x) >= 4),
    penalty=st.sampled_from([0.5, 1.0, 1.3, 3.0]),
    presence=st.sampled_from([-1.0, 0.0, 0.5]),
    frequency=st.sampled_from([-0.25, 0.0, 0.75]),
    data=st.data(),
)
def test_penalties_are_those_of_their_definitions(make_sampler, isa, logits, penalty, presence, frequency, data):
    """Repetition counts prompt and output as transformers does; presence and frequency the output alone (OpenAI)."""
    vocab = len(logits)
    tokens = st.lists(st.integers(0, vocab - 1), max_size=12)
    prompt, output = data.draw(tokens), data.draw(tokens)
    expected = logits.astype(np.float64)
    if prompt + output:
        ids = torch.tensor([prompt + output])
        expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, torch.tensor(expected)[None])[0].numpy()
    counts = np.bincount(np.asarray(output, int), minlength=vocab)
    expected = expected - frequency * counts - presence * (counts > 0)
    request = {"prompt": prompt, "output": output, "repetition_penalty": penalty}
    request |= {"presence_penalty": presence, "frequency_penalty": frequency}
    seen = changed_logits(make_sampler(vocab, isa), vocab, logits, request)
    assert np.allclose(seen, np.maximum(expected - expected.max(), -64), atol=2e-3)


@every_isa
@pytest.mark.parametrize("times", [1, 2, 255, 256, 257, 258, 1000])
def test_a_token_repeated_often_is_penalised_once(make_sampler, isa, times):
    """10 / 2 stays above 4; a second division would not."""
    request = {"temperature": 0, "repetition_penalty": 2, "prompt": [3] * times}
    assert make_sampler(5, isa)([0, 4, 0, 10, 0], [request]).token_ids[0] == 3
    split = {"temperature": 0, "repetition_penalty": 2, "prompt": [3] * times, "output": [3] * times}
    assert make_sampler(5, isa)([0, 4, 0, 10, 0], [split]).token_ids[0] == 3


@every_isa
def test_bias_adds_and_minus_infinity_bans(make_sampler, isa):
    logits = [0.0, 1.0, 2.0, 3.0]
    requests = [{"temperature": 0, "bias": bias} for bias in ({0: 3.5}, {3: -INF}, {3: -INF, 2: -INF}, {1: 2.0})]
    assert list(make_sampler(4, isa)(logits, requests).token_ids) == [0, 2, 1, 1]
    drawn = make_sampler(4, isa)(logits, [{"bias": {3: -INF}, "seed": s} for s in range(4000)])
    assert chi_square_accepts(np.bincount(drawn.token_ids, minlength=4), softmax([0, 1, 2, -INF]))


@every_isa
@settings(max_examples=25)
@given(data=st.data(), vocab=st.sampled_from([1, 31, 32, 33, 64, 100]))
def test_only_tokens_of_the_bitmask_are_drawn(make_sampler, isa, data, vocab):
    allowed = data.draw(st.sets(st.integers(0, vocab - 1)))
    logits = np.random.default_rng(vocab).normal(size=vocab)
    requests = [{"allowed": allowed, "seed": s, "temperature": s % 3, "top_p": 0.95} for s in range(60)]
    drawn = make_sampler(vocab, isa)(logits, [*requests, {"temperature": 0}]).token_ids
    assert set(drawn[:-1]) <= (allowed or {-1})
    assert drawn[-1] == logits.argmax()  # a neighbour without a mask is untouched by it


@every_isa
@pytest.mark.parametrize("temperature", [0, 0.7])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_row_whose_every_token_is_banned_returns_minus_one(make_sampler, isa, temperature, filters):
    request = {"temperature": temperature, "num_top": 2, **filters}
    requests = [
        request | {"allowed": []},
        request | {"bias": dict.fromkeys(range(6), -INF)},
        request | {"allowed": [1, 2], "bias": {1: -INF, 2: -INF}},
        request,
    ]
    drawn = make_sampler(6, isa)(np.arange(6.0), requests)
    assert list(drawn.token_ids[:3]) == [-1, -1, -1]
    assert drawn.token_ids[3] >= 0
    assert np.all(drawn.ranks[:3] == 0)
    assert np.all(drawn.top_ids[:3] == -1)
    assert list(make_sampler(6, isa)(np.full(6, -INF), [request]).token_ids) == [-1]
    assert list(make_sampler(6, isa)(np.full(6, NAN), [request]).token_ids) == [-1]


# Draws ----------------------------------------------------------------------------------------------------------------


@every_isa
@pytest.mark.parametrize("counter", ["seed", "choice", "position"])
@pytest.mark.parametrize("filters", [{}, {"top_k": 20, "top_p": 0.95, "min_p": 0.01}])
def test_draws_follow_the_softmax(make_sampler, isa, counter, filters):
    """Whichever of the three counters runs, tokens come as often as they should, and so do pairs in a row."""
    vocab, count = 24, 10000
    logits = np.random.default_rng(3).normal(0, 1.5, vocab)
    requests = [{"seed": 12345, **filters, counter: i, "temperature": 0.8} for i in range(count)]
    drawn = make_sampler(vocab, isa)(logits, requests).token_ids
    kept = survivors(logits, 0.8, filters.get("top_k", 0), filters.get("top_p", 1), filters.get("min_p", 0))
    probabilities = softmax(np.where(kept, logits / 0.8, -INF))
    assert chi_square_accepts(np.bincount(drawn, minlength=vocab), probabilities)
    pairs = np.bincount(drawn[:-1] * vocab + drawn[1:], minlength=vocab**2)
    assert chi_square_accepts(pairs, np.outer(probabilities, probabilities).ravel())


@every_isa
def test_a_draw_is_the_same_alone_in_any_batch_and_with_any_threads(make_sampler, isa):
    vocab, rng = 61, np.random.default_rng(4)
    logits = rng.normal(0, 2, (7, vocab)).astype(np.float32)
    requests = [
        {
            "row": int(rng.integers(7)),
            "temperature": float(rng.choice([0, 0.5, 1, 1.7])),
            "top_k": int(rng.choice([0, 3, 30])),
            "top_p": float(rng.choice([1, 0.8])),
            "min_p": float(rng.choice([0, 0.05])),
            "repetition_penalty": float(rng.choice([1, 1.2])),
            "frequency_penalty": float(rng.choice([0, 0.4])),
            "presence_penalty": float(rng.choice([0, 0.4])),
            "seed": int(rng.integers(2**63)),
            "choice": int(rng.integers(3)),
            "position": int(rng.integers(1000)),
            "prompt": rng.integers(0, vocab, int(rng.integers(5))).tolist(),
            "output": rng.integers(0, vocab, int(rng.integers(5))).tolist(),
            "bias": {int(rng.integers(vocab)): float(rng.normal())},
            "num_top": int(rng.integers(-1, 5)),
            **({"allowed": rng.permutation(vocab)[:50].tolist()} if i % 3 else {}),
        }
        for i in range(60)
    ]
    together = make_sampler(vocab, isa)(logits, requests)
    order = rng.permutation(60)
    shuffled = make_sampler(vocab, isa, 3)(logits, [requests[i] for i in order])
    for name, one, other in zip(together._fields, together, shuffled, strict=True):
        assert np.array_equal(one[order], other), name
    for i, request in enumerate(requests):
        alone = make_sampler(vocab, isa, 2)(logits[request["row"]], [request | {"row": 0}])
        assert alone.token_ids[0] == together.token_ids[i]
        assert alone.logprobs[0] == together.logprobs[i]
        assert alone.ranks[0] == together.ranks[i]
        top = alone.top_ids.shape[1]
        assert np.array_equal(alone.top_ids[0], together.top_ids[i, :top])
        assert np.array_equal(alone.top_logprobs[0], together.top_logprobs[i, :top])


@every_isa
def test_the_logits_given_are_only_read(make_sampler, isa):
    logits = np.random.default_rng(5).normal(size=(1, 40)).astype(np.float32)
    before = logits.copy()
    logits.flags.writeable = False
    request = {"repetition_penalty": 2, "output": [1, 2], "bias": {3: -INF}, "allowed": range(20), "top_p": 0.5}
    make_sampler(40, isa)(logits, [request | {"num_top": 3}])
    assert np.array_equal(logits, before)


# Log-probabilities ----------------------------------------------------------------------------------------------------


@every_isa
@pytest.mark.parametrize("vocab", [1, 7, 100, 49152])
def test_logprobs_and_ranks_are_of_the_models_own_logits(make_sampler, isa, vocab):
    logits = np.random.default_rng(6).normal(0, 6, (4, vocab)).astype(np.float32)
    top = min(vocab, 9)
    request = {"temperature": 2, "top_k": 5, "repetition_penalty": 1.5, "output": [0], "bias": {0: 1.0}}
    drawn = make_sampler(vocab, isa)(logits, [request | {"row": r, "seed": r, "num_top": top} for r in range(4)])
    expected = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1).numpy()
    order = np.argsort(-logits, axis=1, kind="stable")
    for row, token in enumerate(drawn.token_ids):
        assert drawn.logprobs[row] == pytest.approx(expected[row, token], abs=1e-5)
        assert drawn.ranks[row] == 1 + np.flatnonzero(order[row] == token)[0]
        assert np.array_equal(drawn.top_ids[row], order[row, :top])
        assert np.allclose(drawn.top_logprobs[row], expected[row, order[row, :top]], atol=1e-5)


@every_isa
def test_top_tokens_and_ranks_put_the_lower_id_first_among_equals(make_sampler, isa):
    logits = np.asarray([1, 2, 2, 0, 2, 1], np.float32)
    requests = [{"temperature": 0, "allowed": [token], "num_top": 6} for token in range(6)]
    drawn = make_sampler(6, isa)(logits, requests)
    assert np.array_equal(drawn.top_ids, [[1, 2, 4, 0, 5, 3]] * 6)
    assert list(drawn.ranks) == [4, 1, 2, 6, 3, 5]


@every_isa
def test_entries_past_a_samples_own_number_of_alternatives_are_empty(make_sampler, isa):
    logits = np.arange(8, dtype=np.float32)
    drawn = make_sampler(8, isa)(logits, [{"temperature": 0, "num_top": n} for n in (-1, 0, 2, 8)])
    assert drawn.top_ids.shape == drawn.top_logprobs.shape == (4, 8)
    for row, top in enumerate([0, 0, 2, 8]):
        assert np.all(drawn.top_ids[row, top:] == -1)
        assert np.all(drawn.top_logprobs[row, top:] == 0)
        assert np.array_equal(drawn.top_ids[row, :top], np.arange(8)[::-1][:top])
    assert list(drawn.ranks) == [0, 1, 1, 1]
    assert drawn.logprobs[0] == 0
    assert np.all(drawn.logprobs[1:] == drawn.top_logprobs[2, 0])


# Anything at all ------------------------------------------------------------------------------------------------------

any_float = st.floats(width=32)
not_negative = st.floats(0, width=32)


@every_isa
@settings(max_examples=150)
@given(
    logits=st.lists(any_float, min_size=1, max_size=40),
    temperature=not_negative,
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    penalty=st.floats(2**-140, 2.0**100, width=32),
    additive=st.floats(-100, 100, width=32),
    seed=st.integers(0, 2**64 - 1),
    counters=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2),
    banned=st.sets(st.integers(0, 39)),
)
@example([1.0, 2.0], 3e-39, 0, 1.0, 0.0, 1.0, 0.0, 0, (0, 0), set())
@example([INF, NAN, -INF, 1.0], 1.0, 0, 1.0, 0.0, 1.0, 0.0, 0, (0, 0), set())
@example([-3e38, 3e38], 1.0, 2, 0.5, 0.5, 2.0**-140, 0.0, 0, (0, 0), set())
def test_any_logits_and_parameters_give_an_allowed_token(
    make_sampler, isa, logits, temperature, top_k, top_p, min_p, penalty, additive, seed, counters, banned
):
    vocab = len(logits)
    request = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    request |= {"choice": counters[0], "position": counters[1], "num_top": vocab}
    plain = request | {"bias": {token: -INF for token in banned if token < vocab}}
    changed = plain | {"repetition_penalty": penalty, "presence_penalty": additive, "frequency_penalty": additive}
    changed |= {"prompt": range(vocab), "output": [*range(vocab), 0]}
    drawn = make_sampler(vocab, isa)(logits, [plain, changed])
    usable = {i for i, x in enumerate(logits) if x > -INF and i not in banned}
    # A ban of an infinite logit leaves a NaN, which is a ban; no other token is ever lost or found.
    assert drawn.token_ids[0] in (usable or {-1})
    assert drawn.token_ids[1] in usable | {-1}
    if drawn.token_ids[0] >= 0:
        assert sorted(drawn.top_ids[0]) == list(range(vocab))
        assert 1 <= drawn.ranks[0] <= vocab
