"""A load of mixed requests, and serving it while watching what KV memory holds."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.planner.contiguous import Held, Lengths

_SHARE_OF_PROMPT, _SHARE_OF_OUTPUT = 161 / 2048, 338 / 2048
"""Mean lengths of ShareGPT's conversations as Kwon et al. (SOSP 2023) served them, of a context of 2,048 tokens."""
_SIGMA = 1.0
"""Of the logarithm of a length."""


def mixed_load(rng: random.Random, count: int, max_model_len: int) -> list[Lengths]:
    """Requests as mixed as a chat service's: log-normal lengths with ShareGPT's means, scaled to the context.

    Prompt and output of one together are never more than ``max_model_len``, which is 2 or more.
    """
    from octavo.planner.contiguous import Lengths

    def length(share: float, most: int) -> int:
        center = math.log(share * max_model_len) - _SIGMA**2 / 2  # so that the mean is share * max_model_len
        return min(max(round(rng.lognormvariate(center, _SIGMA)), 1), most)

    load = []
    for _ in range(count):
        prompt = length(_SHARE_OF_PROMPT, max_model_len - 1)
        load.append(Lengths(prompt, length(_SHARE_OF_OUTPUT, max_model_len - prompt)))
    return load


@dataclass(slots=True)
class Run:
    """One run of a load: what memory held after each step, and the second it was; the tokens of each reply."""

    steps: list[Held] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    replies: list[list[int]] = field(default_factory=list)
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0

    @property
    def seconds(self) -> float:
        return self.moments[-1]


def serve(engine: Engine, load: list[Lengths], prompts: list[list[int]], most: int) -> Run:
    """Serve a load greedily and in order, with ``most`` requests in the engine at any time: what
    ``max_num_seqs=most`` is to an engine. Nobody else may use it meanwhile.

    What earlier runs left in the cache is forgotten first, or the same prompts would cost nothing.
    """
    from octavo.engine.interrupts import deferred_interrupts
    from octavo.engine.sampling_params import SamplingParams

    waiting = deque(
        engine.intake.accept(
            prompt, SamplingParams(temperature=0, max_tokens=lengths.num_output_tokens, ignore_eos=True)
        )
        for prompt, lengths in zip(prompts, load, strict=True)
    )
    run = Run(replies=[[] for _ in load])
    reply_of = {group.request_id: reply for group, reply in zip(waiting, run.replies, strict=True)}
    engine.reset_prefix_cache()
    before = engine.snapshot()
    began = time.perf_counter()
    while waiting or engine.has_unfinished:
        while waiting and engine.num_running + engine.num_waiting < most:
            engine.add(waiting.popleft())
        with deferred_interrupts():
            outputs = engine.step()
        for output in outputs:
            reply_of[output.request_id].extend(output.outputs[0].token_ids)
        run.moments.append(time.perf_counter() - began)
        run.steps.append(_held(engine, len(waiting)))
    run.num_preemptions = engine.stats.num_preemptions - before.num_preemptions
    num_computed = engine.stats.num_computed_tokens - before.num_computed_tokens
    run.num_recomputed_tokens = num_computed - sum(lengths.most_held for lengths in load)
    return run


def _held(engine: Engine, num_outside: int) -> Held:
    """What the engine's blocks hold between two steps, and who waits in it or outside. Read-only."""
    from octavo.planner.contiguous import Held

    size = engine.kv.block_size
    num_later = num_unused = 0
    for request in engine.scheduler.running:
        slots = request.blocks.num_blocks * size
        most_held = request.num_prompt_tokens + request.group.max_output_tokens - 1
        coming = min(slots, most_held) - request.num_computed_tokens
        num_later += coming
        num_unused += slots - request.num_computed_tokens - coming
    # A token has a slot in each group of layers. A block that a window has left behind is held no more.
    slots = engine.kv.num_referenced_blocks * size // engine.kv.num_groups
    num_tokens = slots - num_later - num_unused
    return Held(engine.num_running, engine.num_waiting + num_outside, num_tokens, num_later, num_unused)
