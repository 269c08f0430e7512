"""Engine: the step loop. Requests come in, tokens come out; one thread drives it."""

from __future__ import annotations

import copy
import random
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar

from octavo.config import EngineConfig
from octavo.engine.answer import AnswerText
from octavo.engine.batch import BatchBuilder
from octavo.engine.intake import Intake
from octavo.engine.outputs import RequestOutput
from octavo.engine.prompt_scores import collect_scores, rows_to_score
from octavo.engine.request import Request, RequestGroup
from octavo.engine.scheduler import Scheduler, SchedulerOutput
from octavo.engine.shaping import LogitShaping
from octavo.engine.stats import EngineGauges, EngineReport, EngineStats
from octavo.engine.tier_link import TierLink
from octavo.engine.unfinished import Unfinished
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.kv.block import BlockError
from octavo.kv.hashing import BlockHash, Namespace, hash_block
from octavo.kv.manager import KVCacheManager
from octavo.kv.residency import Residency
from octavo.model.runner import Float32s, ForwardBatch, Int32s, SampleBatch, Samples, Scores
from octavo.planner import MemoryPlan
from octavo.text.tokenizer import Tokenizer

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LOAD_PATIENCE = 0.01
"""Seconds that a step waits for blocks to be read when there is nothing to compute: orders are taken between steps."""


class Runner(Protocol):
    """What computes; :class:`octavo.model.runner.ModelRunner` outside of tests."""

    def execute(self, batch: ForwardBatch) -> Float32s: ...
    def score(self, rows: Int32s, targets: Int32s, num_top: int) -> Scores: ...
    def sample(self, logits: Float32s, batch: SampleBatch) -> Samples: ...


class Engine:
    """One model, one KV pool, any number of requests. Not thread-safe, except :attr:`intake`.

    Args:
        namespace: of this engine's cached values; a request's ``cache_salt`` takes the place of its own.
        tokenizer: ``None`` for a model that is driven by token ids alone; its answers have no text.
        eos_token_ids: tokens that end an answer.
        tier: where blocks are kept beside the pool; closed with the engine.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        plan: MemoryPlan,
        namespace: Namespace,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        tier: TierLink | None = None,
    ) -> None:
        self.config = config
        self.tier = tier
        self.plan = plan
        residency = Residency(plan.num_blocks, time.monotonic)
        self.kv = KVCacheManager(
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            group_windows=plan.group_windows,
            enable_prefix_caching=config.enable_prefix_caching,
            watcher=residency,
            offload=tier,
            retention_budget=config.retention_budget,
            clock=time.monotonic,
        )
        self.scheduler = Scheduler(
            self.kv,
            max_num_running=config.max_num_running,
            max_num_batched_tokens=config.max_num_batched_tokens,
            loader=tier,
        )
        if tier is not None:
            tier.attach(self.kv)
            # Also when the engine is forgotten, or Python exits: what is queued shall be durable.
            weakref.finalize(self, tier.tier.close)
        self.intake = Intake(
            tokenizer,
            # A tokenizer may know tokens that the model does not; those are never drawn, so they end nothing.
            eos_token_ids=frozenset(token for token in eos_token_ids if 0 <= token < vocab_size),
            vocab_size=vocab_size,
            max_model_len=plan.max_model_len,
            pool_tokens=plan.longest_request,
        )
        self.stats = EngineStats(
            block_lifetime=residency.lifetime,
            block_idle_before_evict=residency.idle_before_evict,
            block_reuse_gap=residency.reuse_gap,
        )
        self.failure: BaseException | None = None
        """What ended the engine, if anything did."""
        self._runner: Runner | None = runner
        self._namespace = namespace
        self._tokenizer = tokenizer
        self._batches = BatchBuilder(
            num_groups=len(plan.group_windows),
            max_num_seqs=config.max_num_running,
            max_blocks=-(-plan.max_model_len // plan.block_size),
            max_num_tokens=config.max_num_batched_tokens,
            vocab_size=vocab_size,
        )
        self._unfinished = Unfinished(self.scheduler, self.stats, tokenizer, self.intake.eos_token_ids)
        self._arrivals = 0
        self._seeds = random.Random(config.seed)

    @property
    def has_unfinished(self) -> bool:
        """Whether there is a step to take: for somebody who waits, or to give back what an aborted load holds."""
        return bool(self._unfinished or self.scheduler.loading)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that compute nothing yet, or again: in the queue, or their blocks being read from a tier."""
        return len(self.scheduler.waiting) + len(self.scheduler.loading)

    def add(self, group: RequestGroup) -> None:
        """Queue what :attr:`intake` accepted.

        Raises:
            EngineDeadError: the engine failed earlier.
            InvalidRequestError: its request_id is in use.
        """
        self._require_alive()
        if group.request_id in self._unfinished:
            raise InvalidRequestError(
                f"request_id {group.request_id!r} is in use by a request that is not finished",
                param="request_id",
            )
        params = group.params
        root = self._root(group.cache_salt)
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64
        if params.prompt_logprobs is not None:
            group.prompt_logprobs = [None]
        for index in range(params.n):
            request = Request(group, index, arrival=self._arrivals, seed=seed)
            self._arrivals += 1
            request.blocks = self.kv.new_sequence(
                request.token_ids,
                root,
                read_cache=group.reads_cache,
                write_cache=params.use_cache,
            )
            if self._tokenizer is not None:
                request.answer = AnswerText(self._tokenizer, group.prompt_token_ids, params)
            if LogitShaping.needed(params):
                banned = self.intake.banned_before_minimum(params)
                grammar = None if group.grammar is None else group.grammar.copy()
                request.shaping = LogitShaping(params, group.prompt_token_ids, banned, self.intake.vocab_size, grammar)
            group.requests.append(request)
            self.scheduler.add(request)
        self._unfinished.add(group)
        self.stats.num_requests += params.n

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state it is, and give its blocks back at once.

        Returns its last output, or ``None`` if no such request is unfinished: it may have ended by itself.
        """
        group = self._unfinished.get(request_id)
        return None if group is None else self._unfinished.end(group, "abort")

    def step(self) -> list[RequestOutput]:
        """Compute one step and return what is new, at most one increment per request group.

        Raises:
            EngineDeadError: this step failed, or one before it. Every unfinished request is gone then.
        """
        runner = self._require_alive()
        began = time.perf_counter()
        native_before = self.stats.native_seconds
        try:
            outputs = self._unfinished.end_late()
            if self.tier is not None:
                self.tier.settle(self.scheduler)
            scheduled = self.scheduler.schedule()
            if self.tier is not None:
                self.tier.begin(scheduled)
            if scheduled.requests:
                outputs += self._compute(runner, scheduled)
            elif self.tier is not None and not outputs:
                self.tier.wait(_LOAD_PATIENCE)
        except Exception as error:
            self.fail(error)
            raise EngineDeadError(f"the engine failed and serves nothing more: {error!r}") from error
        native = self.stats.native_seconds - native_before
        self.stats.python_seconds += time.perf_counter() - began - native
        return outputs

    def close(self) -> None:
        """End the engine and let go of the model and the KV pool. Whatever is unfinished is dropped."""
        self.fail(EngineDeadError("it was closed"))
        if self.tier is not None:
            self.tier.tier.close()
        self._runner = None

    def fail(self, error: BaseException) -> None:
        """Serve nothing more because of ``error``: drop every request and give all blocks back.

        The first failure stays the reason.
        """
        if self.failure is None:
            self.failure = error
        self.scheduler.clear()
        self._unfinished.clear()

    def reset_prefix_cache(self) -> int:
        """Forget every cached block that no request holds. Returns how many there were."""
        return self.kv.reset_prefix_cache()

    def lookup(self, token_ids: Sequence[int], cache_salt: bytes = b"") -> int:
        """How many of ``token_ids`` a prompt of them would find cached now, at most all but the last: in memory, or in
        the tier, if it would be asked.
        """
        root = self._root(cache_salt)
        return (self.kv if self.tier is None else self.tier).lookup(root, list(token_ids))

    def offer_cached(self, token_ids: Sequence[int], cache_salt: bytes = b"") -> int:
        """Offer what is cached of ``token_ids`` to the tier. Returns how many blocks found no room in its queue."""
        return 0 if self.tier is None else self.tier.offer(self._root(cache_salt), token_ids)

    def num_stored(self, token_ids: Sequence[int], cache_salt: bytes = b"") -> int:
        """How many of ``token_ids`` are durable in the tier, in whole blocks from the first on."""
        seq = self.kv.new_sequence([*token_ids, 0], self._root(cache_salt))
        return 0 if self.tier is None else self.tier.num_stored(seq)

    def block_hashes(self, token_ids: Sequence[int], cache_salt: bytes = b"") -> list[BlockHash]:
        """What the whole blocks of ``token_ids`` are called wherever they are kept. Any thread may call it."""
        found = [replace(self._namespace, cache_salt=cache_salt).root()]
        for end in range(self.plan.block_size, len(token_ids) + 1, self.plan.block_size):
            found.append(hash_block(found[-1], token_ids[end - self.plan.block_size : end]))
        return found[1:]

    def retain(self, token_ids: Sequence[int], seconds: float, cache_salt: bytes = b"") -> int:
        """Keep what is cached of ``token_ids`` for ``seconds`` from now, at least. Returns how many tokens that is.

        Other cached blocks are evicted before these, within ``retention_budget``.
        """
        return self.kv.retain_cached(self._root(cache_salt), token_ids, time.monotonic() + seconds)

    def release_retained(self, token_ids: Sequence[int], cache_salt: bytes = b"") -> None:
        """Keep what is cached of ``token_ids`` no longer than anything else, whoever retained it."""
        self.kv.release_retained(self._root(cache_salt), token_ids)

    def snapshot(self) -> EngineStats:
        """A copy of the counters as they are now."""
        return copy.deepcopy(self.stats)

    def gauges(self) -> EngineGauges:
        """What is running, waiting and held now."""
        kv = self.kv
        unheld, cached = kv.num_free_blocks, kv.num_evictable_blocks
        return EngineGauges(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocks=kv.num_blocks - 1,
            num_active_blocks=kv.num_blocks - 1 - unheld,
            num_cached_blocks=cached,
            num_retained_blocks=kv.num_retained_blocks,
            num_free_blocks=unheld - cached,
            block_size=kv.block_size,
        )

    def report(self) -> EngineReport:
        """Counters and gauges of the same moment."""
        return EngineReport(self.snapshot(), self.gauges(), None if self.tier is None else self.tier.report())

    def check_idle(self) -> None:
        """Raise BlockError unless the engine is idle, holds no block, and its bookkeeping is sound."""
        self.kv.check()
        if self.has_unfinished or self.scheduler.has_unfinished or self.kv.num_referenced_blocks:
            raise BlockError(
                f"not idle: {len(self._unfinished)} request groups, {self.num_running} running, "
                f"{self.num_waiting} waiting, {self.kv.num_referenced_blocks} blocks held"
            )

    # One step ----------------------------------------------------------------------------------------

    def _compute(self, runner: Runner, scheduled: SchedulerOutput) -> list[RequestOutput]:
        self._note_admissions(scheduled)
        batch, draws = self._batches.forward(scheduled)
        logits = self._native(runner.execute, batch)
        to_score = rows_to_score(scheduled)
        if to_score is not None:
            scores = self._native(runner.score, to_score.rows, to_score.targets, to_score.num_top)
            collect_scores(to_score, scores, self._unfinished.token_text)
        self.scheduler.advance(scheduled)
        outputs: list[RequestOutput] = []
        if draws:
            samples = self._native(runner.sample, logits, self._batches.sample(draws))
            outputs = self._unfinished.append(draws, samples)
        prompts_only = [r for r in scheduled.requests if not r.group.max_output_tokens and r.prompt_computed]
        ended = dict.fromkeys(request.group for request in prompts_only)
        return outputs + [self._unfinished.end(group, "length") for group in ended]

    def _note_admissions(self, scheduled: SchedulerOutput) -> None:
        stats, now = self.stats, time.monotonic()
        stats.num_steps += 1
        stats.num_computed_tokens += scheduled.total_num_tokens
        stats.tokens_per_step.observe(scheduled.total_num_tokens)
        stats.num_preemptions += len(scheduled.preempted)
        stats.num_recomputed_prompt_tokens += scheduled.num_recomputed_prompt_tokens
        for request in scheduled.admitted:
            if request.group.metrics.first_scheduled_time is None:
                request.group.metrics.first_scheduled_time = now
                stats.num_prompt_tokens += request.num_prompt_tokens
                stats.num_queried_tokens += request.num_prompt_tokens if request.blocks.read_cache else 0
                stats.num_cached_tokens += request.group.num_cached_tokens or 0

    def _root(self, cache_salt: bytes) -> BlockHash:
        root = replace(self._namespace, cache_salt=cache_salt).root()
        if self.tier is not None:
            self.tier.note_root(root, cache_salt)
        return root

    def _native(self, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            self.stats.native_seconds += time.perf_counter() - began

    def _require_alive(self) -> Runner:
        if self.failure is not None or self._runner is None:
            raise EngineDeadError(f"the engine serves nothing more: {self.failure}") from self.failure
        return self._runner
