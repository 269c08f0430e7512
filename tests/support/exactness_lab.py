"""A laboratory for promise 1: engines over one model, every row of logits kept.

A request is told apart by its seed, so (seed, choice, output position) names one draw, and the row of logits it
was drawn from is recorded under that name. Two runs are the same if they recorded the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from octavo import SamplingParams, _native
from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.intake import RequestOptions
from octavo.engine.load_cost import LoadCost
from octavo.engine.open_tier import open_tier
from octavo.kv.hashing import Namespace
from octavo.model.runner import Float32s, ForwardBatch, ModelRunner, SampleBatch, Samples
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec
from octavo.model.weights import empty_model
from octavo.planner import bytes_per_block, kv_formats, plan

Key = tuple[int, int, int]
"""(seed, choice, output position)"""


class RecordingRunner(ModelRunner):
    """The real runner; keeps every row of logits that a token was drawn from."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.rows: dict[Key, bytes] = {}
        self.most_tokens_in_a_step = 0

    def execute(self, batch: ForwardBatch) -> Float32s:
        self.most_tokens_in_a_step = max(self.most_tokens_in_a_step, len(batch.token_ids))
        return super().execute(batch)

    def sample(self, logits: Float32s, batch: SampleBatch) -> Samples:
        keys = zip(batch.seeds.tolist(), batch.choices.tolist(), batch.positions.tolist(), strict=True)
        for key, row in zip(keys, batch.rows, strict=True):
            assert key not in self.rows, f"{key} was drawn twice"
            self.rows[key] = logits[row].tobytes()
        return super().sample(logits, batch)


@dataclass(frozen=True)
class Ask:
    """One request of a run: greedy, so that the draws add no chance of their own."""

    seed: int
    prompt: tuple[int, ...]
    max_tokens: int = 6
    n: int = 1
    priority: int = 0
    read_cache: bool = True
    use_cache: bool = True
    temperature: float = 0.0

    def params(self) -> SamplingParams:
        return SamplingParams(
            n=self.n,
            seed=self.seed,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            ignore_eos=True,
            use_cache=self.use_cache,
            skip_reading_prefix_cache=not self.read_cache,
        )


@dataclass
class Run:
    """An engine that is asked things, and what it answered so far."""

    engine: Engine
    runner: RecordingRunner
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)

    def add(self, ask: Ask) -> None:
        options = RequestOptions(priority=ask.priority)
        group = self.engine.intake.accept(list(ask.prompt), ask.params(), request_id=str(ask.seed), options=options)
        self.engine.add(group)

    def abort(self, seed: int) -> None:
        self.engine.abort(str(seed))

    def step(self) -> None:
        for output in self.engine.step():
            seed = int(output.request_id)
            self.cached[seed] = output.num_cached_tokens
            for completion in output.outputs:
                self.tokens.setdefault((seed, completion.index), []).extend(completion.token_ids)
        self.engine.kv.check()

    def finish(self) -> Run:
        while self.engine.has_unfinished:
            self.step()
        self.engine.check_idle()
        return self

    def ask(self, *asks: Ask) -> Run:
        for ask in asks:
            self.add(ask)
        return self.finish()

    def rows_of(self, seed: int) -> dict[Key, bytes]:
        return {key: row for key, row in self.runner.rows.items() if key[0] == seed}

    def logits(self, seed: int, position: int = 0, choice: int = 0) -> np.ndarray:
        return np.frombuffer(self.runner.rows[seed, choice, position], np.float32)


class Lab:
    """One loaded model and a KV format. ``start`` makes an engine over it; ``alone`` is what everything is compared
    with.
    """

    def __init__(
        self, spec: ModelSpec, models: Callable[[int], _native.Model], digest: bytes, *, kv_dtype: str = "bf16"
    ) -> None:
        self.spec = spec
        self.kv_dtype = kv_dtype
        self._models = functools.cache(models)
        self._digest = digest
        self._alone: dict[tuple[tuple[int, ...], int], Run] = {}

    def start(
        self,
        *,
        threads: int = 2,
        num_blocks: int = 64,
        block_size: int = 16,
        keep_passed: bool = False,
        **config: object,
    ) -> Run:
        """``keep_passed``: windows mask keys as ever, but what they have passed stays in memory and block tables.

        With ``kv_disk`` whatever is in the tier is loaded, be it slower than computing it.
        """
        settings = EngineConfig(block_size=block_size, kv_dtype=self.kv_dtype, **config)  # type: ignore[arg-type]
        formats = kv_formats(self.spec, settings)
        settings = replace(settings, kv_memory=num_blocks * bytes_per_block(self.spec, block_size, formats))
        memory = plan(self.spec, settings, free_memory=2**40)
        if keep_passed:
            memory = replace(memory, group_windows=(None,) * len(memory.group_windows))
        model = self._models(threads)
        runner = RecordingRunner(
            self.spec,
            model,
            kv_formats=formats,
            block_size=block_size,
            num_blocks=num_blocks,
            max_logit_rows=settings.max_num_running,
        )
        namespace = Namespace(
            weights_digest=self._digest,
            spec_digest=self.spec.digest(),
            kv_formats=tuple(layer.codecs for layer in formats),
            block_size=block_size,
            layout_version=_native.LAYOUT_VERSION,
            numerics_id=model.isa,
        )
        link = open_tier(settings, namespace, runner, memory, "lab").link
        if link is not None:
            link.cost = LoadCost(seconds_per_token=1.0, seconds_per_block=0.0)
        engine = Engine(settings, runner, memory, namespace, None, vocab_size=self.spec.vocab_size, tier=link)
        return Run(engine, runner)

    def alone(self, ask: Ask) -> Run:
        """The request by itself: a fresh pool, nothing cached, the prompt in one piece, one thread."""
        key = ask.prompt, ask.max_tokens
        if key not in self._alone:
            blocks = 2 + -(-(len(ask.prompt) + ask.max_tokens) // 16) * len(self.spec.kv_groups)
            run = self.start(threads=1, num_blocks=blocks, max_num_batched_tokens=4096, enable_prefix_caching=False)
            self._alone[key] = run.ask(Ask(0, ask.prompt, ask.max_tokens))
        return self._alone[key]

    def assert_exact(self, run: Run, *asks: Ask) -> None:
        """Every greedy request in ``run`` drew every token from the very bits it has when alone."""
        for ask in asks:
            expected = {position: row for (_, _, position), row in self.alone(ask).runner.rows.items()}
            for choice in range(ask.n):
                drawn = {p: row for (_, c, p), row in run.rows_of(ask.seed).items() if c == choice}
                assert drawn.keys() == expected.keys(), f"request {ask.seed} drew other positions"
                wrong = [p for p in sorted(drawn) if drawn[p] != expected[p]]
                assert not wrong, f"request {ask.seed}, choice {choice}: logits differ at output positions {wrong}"
                assert run.tokens[ask.seed, choice] == self.alone(ask).tokens[0, 0]

    def prompt(self, length: int, *, seed: int = 0) -> tuple[int, ...]:
        return tuple(np.random.default_rng(seed).integers(0, self.spec.vocab_size, length).tolist())


def _spec(
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    inner: int,
    windows: Sequence[int | None],
    tied: bool,
    *,
    rotated: int | None = None,
    local_theta: float = 10_000.0,
    unrotated: Collection[int] = (),
) -> ModelSpec:
    whole, local = (RopeSpec(theta=theta, dim=rotated or head_dim) for theta in (10_000.0, local_theta))
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=331,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=1e-5,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        attention_scale=head_dim**-0.5,
        layers=tuple(
            LayerSpec(window, None if index in unrotated else local if window else whole)
            for index, window in enumerate(windows)
        ),
    )


SHAPES = {
    "mha": _spec(4, 4, 16, 64, 96, [None, None], True),
    "gqa": _spec(6, 2, 32, 90, 130, [None, None, None], False),
    "mqa": _spec(7, 1, 48, 76, 52, [None, None], True),
    "windowed": _spec(6, 3, 16, 72, 80, [40, 40], False),
    "hybrid": _spec(4, 2, 16, 64, 70, [None, 40, None], True),
    "post-normed, half rotated": replace(
        _spec(5, 1, 32, 82, 70, [None, None], False, rotated=16), norms="post", qk_norm="full", o_bias=True
    ),
    "soft-capped, two rotary bases": replace(
        _spec(6, 2, 16, 74, 66, [24, 40, None, 24, 40, None], True, local_theta=300.0),
        norms="both",
        norm_offset=1.0,
        qk_norm="head",
        activation="gelu_tanh",
        attention_softcap=2.0,
        logit_softcap=3.0,
        embed_scale=74**0.5,
    ),
    "biased, one layer unrotated": replace(
        _spec(6, 2, 32, 86, 70, [None, 40, None], False, unrotated=(1,)), qkv_bias=True, o_bias=True, qk_norm="head"
    ),
    "scaled": replace(
        _spec(9, 3, 16, 78, 90, [None, None], True),
        embed_scale=3.0,
        attention_scale=0.3,
        residual_scale=0.4,
        logit_scale=0.2,
    ),
}
"""Small models of odd sizes: a panel is 32 outputs, a row tile 6 rows, a key tile 64 keys, and none of these fits."""


def random_weights(spec: ModelSpec) -> Iterable[tuple[str, int, np.ndarray]]:
    """(slot, layer, bfloat16 bits) of a random model whose logits spread."""
    rng = np.random.default_rng(17)
    for (slot, layer), shape in spec.tensor_shapes().items():
        values = rng.standard_normal(shape, np.float32)
        if slot.endswith("norm"):
            values = 1 - spec.norm_offset + 0.1 * values
        elif slot.endswith("bias"):
            values = 0.5 * values
        else:
            values = values * 1.5 * shape[-1] ** -0.5
        yield slot, layer, (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@functools.cache
def small_lab(shape: str, isa: str, kv_dtype: str = "bf16") -> Lab:
    spec = SHAPES[shape]

    def model(threads: int) -> _native.Model:
        made = empty_model(spec, isa, threads)
        for slot, layer, bits in random_weights(spec):
            made.set_tensor(slot, layer, bits)
        return made

    return Lab(spec, model, digest=shape.encode(), kv_dtype=kv_dtype)
