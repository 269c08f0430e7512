"""A stand-in for the native core, so that the engine's bookkeeping can be tested by itself and fast.

It stands in for arithmetic only. Like the real one it knows a token's past solely through the block tables:
what is stored for a position is a checksum of the token and of what is stored for the position before it,
read from the pool; logits are a function of everything stored for the prefix. So a block that is shared
wrongly, freed too early, published before it was computed, not copied or not zeroed changes the tokens that
come out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.config import EngineConfig
from octavo.engine.assemble import Assembly, StartupSummary
from octavo.engine.engine import Engine
from octavo.engine.sampling_params import SamplingParams
from octavo.kv.hashing import Namespace
from octavo.model.runner import ForwardBatch, SampleBatch, Samples, Scores
from octavo.planner import MemoryPlan
from octavo.text.tokenizer import Tokenizer

VOCAB_SIZE = 24
EOS = 0
_GARBAGE = 0xDEAD


class FakeRunner:
    """Computes what :class:`octavo.model.runner.ModelRunner` would, over checksums instead of keys and
    values.

    ``fail_at``: the forward pass, counted from 1, that raises. ``batches``: every batch that was executed.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self.block_size = plan.block_size
        self.windows = plan.group_windows
        self.pool = np.full((plan.num_blocks, plan.block_size), _GARBAGE, np.int64)
        self.pool[0] = 0
        self.batches: list[ForwardBatch] = []
        self.fail_at: int | None = None
        self._states: list[int] = []

    def execute(self, batch: ForwardBatch) -> np.ndarray:
        self.batches.append(batch)
        if len(self.batches) == self.fail_at:
            raise MemoryError("the machine is on fire")
        for source, target in batch.copies.tolist():
            assert target != 0, "the null block is never written"
            self.pool[target] = self.pool[source]
        assert batch.query_start_loc[0] == 0 and batch.query_start_loc[-1] == len(batch.token_ids)
        assert (np.diff(batch.query_start_loc) > 0).all()
        self._states = []
        for sequence, end in enumerate(batch.seq_lens.tolist()):
            first, last = batch.query_start_loc[sequence : sequence + 2].tolist()
            for table, window in zip(batch.block_tables, self.windows, strict=True):
                passed = 0 if window is None else max(end - (last - first) - window + 1, 0) // self.block_size
                assert not table[sequence, :passed].any(), "what a window has passed may hold somebody else's values"
            for row in range(first, last):
                position = end - (last - row)
                seen = [
                    self._store(table[sequence], position, window, int(batch.token_ids[row]))
                    for table, window in zip(batch.block_tables, self.windows, strict=True)
                ]
                alike = all((seen[0][-len(part) :] == part).all() for part in seen)
                self._states.append(zlib.crc32(seen[0].tobytes() if alike else b"groups differ"))
        return np.array([logits_after(self._states[row]) for row in batch.logit_rows]).reshape(-1, VOCAB_SIZE)

    def score(self, rows: np.ndarray, targets: np.ndarray, num_top: int) -> Scores:
        logprobs = [_log_softmax(logits_after(self._states[row])) for row in rows]
        order = [np.argsort(-row, kind="stable") for row in logprobs]
        return Scores(
            np.array([row[target] for row, target in zip(logprobs, targets, strict=True)], np.float32),
            np.array([o.tolist().index(t) + 1 for o, t in zip(order, targets, strict=True)], np.int32),
            np.array([o[:num_top] for o in order], np.int32).reshape(len(rows), num_top),
            np.array([row[o[:num_top]] for row, o in zip(logprobs, order, strict=True)], np.float32),
        )

    def sample(self, logits: np.ndarray, batch: SampleBatch) -> Samples:
        count = len(batch.rows)
        width = max(int(batch.num_top.max(initial=0)), 0)
        tokens, logprobs, ranks = [], [], []
        top_ids = np.full((count, width), -1, np.int32)
        top_logprobs = np.zeros((count, width), np.float32)
        for i in range(count):
            shaped = logits[batch.rows[i]].copy()
            cut = lambda name: slice(*getattr(batch, f"{name}_starts")[i : i + 2].tolist())  # noqa: E731, B023
            output = batch.output_tokens[cut("output")]
            prompt = batch.prompt_tokens[cut("prompt")]
            shaped[np.unique(output)] -= batch.presence_penalty[i]
            shaped -= batch.frequency_penalty[i] * np.bincount(output, minlength=VOCAB_SIZE)
            shaped[np.unique(np.concatenate([prompt, output]))] -= batch.repetition_penalty[i] - 1
            shaped[batch.bias_tokens[cut("bias")]] += batch.bias_values[cut("bias")]
            if batch.bitmask_rows[i] >= 0:
                words = batch.bitmask[batch.bitmask_rows[i]].astype(np.uint32)
                allowed = [(int(words[t // 32]) >> (t % 32)) & 1 for t in range(VOCAB_SIZE)]
                shaped[np.array(allowed) == 0] = -np.inf
            tokens.append(draw(shaped, batch.temperature[i], batch.seeds[i], batch.choices[i], batch.positions[i]))
            own = _log_softmax(logits[batch.rows[i]])
            order = np.argsort(-own, kind="stable").tolist()
            logprobs.append(own[tokens[-1]])
            ranks.append(order.index(tokens[-1]) + 1 if tokens[-1] >= 0 else 0)
            for place, token in enumerate(order[: max(int(batch.num_top[i]), 0)]):
                top_ids[i, place], top_logprobs[i, place] = token, own[token]
        as_int = lambda values: np.array(values, np.int32)  # noqa: E731
        return Samples(as_int(tokens), np.array(logprobs, np.float32), as_int(ranks), top_ids, top_logprobs)

    def _store(self, table: np.ndarray, position: int, window: int | None, token: int) -> np.ndarray:
        """Write the position, and return what a query there sees: everything, or as much as a window of at least 2."""
        first = 0 if window is None else max(position - window + 1, 0)
        blocks = table[: position // self.block_size + 1]
        assert blocks[first // self.block_size :].all(), "the null block is never written, nor seen"
        last = int(self.pool[blocks].reshape(-1)[position - 1]) if position else 0
        assert position == 0 or last != 0, "the position before was never computed"
        self.pool[blocks[-1], position % self.block_size] = chain(last, token)
        return self.pool[blocks].reshape(-1)[first : position + 1]


def chain(state: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), state) or 1


@lru_cache(maxsize=1 << 16)
def logits_after(state: int) -> np.ndarray:
    return np.random.default_rng(state).standard_normal(VOCAB_SIZE)


def draw(shaped: np.ndarray, temperature: float, seed: int, choice: int, position: int) -> int:
    if not np.isfinite(shaped).any():
        return -1
    if temperature == 0:
        return int(np.argmax(shaped))
    noise = np.random.default_rng([int(seed), int(choice), int(position)]).gumbel(size=VOCAB_SIZE)
    return int(np.argmax(shaped / temperature + noise))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum())


def answer(prompt: Sequence[int], params: SamplingParams, max_tokens: int, choice: int = 0) -> list[int]:
    """What a request must answer: computed alone, from its tokens, without blocks, batches or a scheduler.

    Knows greedy and seeded draws and end-of-sequence; the rest of the parameters have tests of their own.
    """
    tokens, stored = list(prompt), []
    for token in prompt:
        stored.append(chain(stored[-1] if stored else 0, token))
    while len(tokens) - len(prompt) < max_tokens:
        logits = logits_after(zlib.crc32(np.array(stored, np.int64).tobytes()))
        token = draw(logits, params.temperature, params.seed or 0, choice, len(tokens) - len(prompt))
        tokens.append(token)
        if token == EOS and not params.ignore_eos:
            break
        stored.append(chain(stored[-1], token))
    return tokens[len(prompt) :]


def letters() -> Tokenizer:
    """Tokens of one letter and of two, so that a stop string can lie across tokens in more than one way."""
    pieces = ["<eos>", *"abcdefghijklm", "ab", "ba", "abc", "cd", "da", "Ġ", "u", "Ã", "©", "Ċ"]
    backend = Backend(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return Tokenizer(backend, special_tokens={"eos_token": "<eos>"})


MakeEngine = Callable[..., tuple[Engine, FakeRunner]]


@pytest.fixture(scope="session")
def make_engine() -> MakeEngine:
    """An engine over the stand-in: ``make_engine(blocks=, block_size=, windows=, max_model_len=, **config)``."""

    def make(
        *,
        blocks: int = 64,
        block_size: int = 4,
        windows: tuple[int | None, ...] = (None,),
        max_model_len: int = 200,
        tokenizer: Tokenizer | None = None,
        **config: object,
    ) -> tuple[Engine, FakeRunner]:
        settings = EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 16, "seed": 0, **config})
        plan = MemoryPlan(
            block_size=block_size,
            block_bytes=64,
            num_blocks=blocks + 1,
            group_windows=windows,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            bytes_per_token=16,
            max_model_len=max_model_len,
        )
        namespace = Namespace(
            weights_digest=b"w",
            spec_digest=b"s",
            kv_formats=("bf16",),
            block_size=block_size,
            layout_version=1,
            numerics_id="fake",
        )
        runner = FakeRunner(plan)
        engine = Engine(settings, runner, plan, namespace, tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
        return engine, runner

    return make


@pytest.fixture(scope="session")
def expected_answer() -> Callable[..., list[int]]:
    return answer


@pytest.fixture(scope="session")
def letter_tokenizer() -> Tokenizer:
    return letters()


@pytest.fixture(scope="session")
def make_assembly(make_engine: MakeEngine) -> Callable[..., tuple[Assembly, FakeRunner]]:
    """As ``make_engine``, with a tokenizer of letters and a chat template that writes ``<role letter>content``."""
    template = (
        "{% for m in messages %}{{ m.role[0] + ' ' + m.content }}"
        "{% if not loop.last or add_generation_prompt %}{{ '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'a ' }}{% endif %}"
    )

    def make(**config: object) -> tuple[Assembly, FakeRunner]:
        engine, runner = make_engine(tokenizer=letters(), **config)
        plan = engine.plan
        summary = StartupSummary(
            model="fake",
            architecture="Fake",
            isa="none",
            threads=1,
            weight_bytes=0,
            kv_dtype="bf16",
            block_size=plan.block_size,
            block_bytes=plan.block_bytes,
            num_blocks=plan.num_blocks,
            num_tokens=plan.num_tokens,
            bytes_per_token=plan.bytes_per_token,
            planned_bytes=plan.nbytes,
            allocated_bytes=plan.nbytes,
            max_model_len=plan.max_model_len,
            seconds=0.0,
        )
        assert engine.intake.tokenizer is not None
        return Assembly(engine, engine.intake.tokenizer, template, summary), runner

    return make
