"""What benchmarks measure with: prompts that share nothing, timed calls, first tokens, and steps of decode."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.assemble import Assembly
    from octavo.llm import LLM


def random_prompts(llm: LLM | Assembly, rng: random.Random, count: int, length: int) -> list[list[int]]:
    """``count`` prompts of ``length`` random token ids each, so that no prefix is shared.

    Raises:
        ContextLengthError: such a prompt is more than the context or the KV memory holds; none is drawn.
    """
    llm.engine.intake.check_prompt_length(length)
    size = llm.engine.intake.vocab_size
    return [[rng.randrange(size) for _ in range(length)] for _ in range(count)]


def seconds(llm: LLM, prompts: list[list[int]], max_tokens: int) -> float:
    """Seconds to answer all prompts together, greedily, with exactly ``max_tokens`` tokens each.

    With 0 the prompts are computed and nothing is generated.
    """
    from octavo.engine.sampling_params import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began


def seconds_per_step(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    """Seconds of one decode step of all prompts together, over ``tokens`` steps; prefill does not count.

    The prompts are computed first, so that the timed calls start from the cache; where they are cached already, that
    costs next to nothing. What is left of a start, the first token, is timed too and taken off: on a machine that is
    busy with other things the difference can come out as nothing, or less.
    """
    seconds(llm, prompts, 0)
    return (seconds(llm, prompts, tokens + 1) - seconds(llm, prompts, 1)) / tokens


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of an answer, how much of its prompt was not computed for it, and when it came."""

    token: int
    logprob: float
    num_cached_tokens: int
    seconds: float


def first_token(llm: LLM, prompt: list[int]) -> FirstToken:
    """Ask for one token, greedily. ``seconds`` are from the request's arrival."""
    from octavo.engine.sampling_params import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, logprobs=0, ignore_eos=True)
    [output] = llm.generate(prompt, params, use_tqdm=False)
    [answer] = output.outputs
    [token] = answer.token_ids
    assert answer.logprobs is not None and output.metrics.time_to_first_token is not None  # it has a first token
    return FirstToken(
        token, answer.logprobs[0][token].logprob, output.num_cached_tokens, output.metrics.time_to_first_token
    )


def engine_in_words(llm: LLM | Assembly) -> str:
    """What a figure means nothing without, for people: model, instruction set, threads, KV format. No paths."""
    name = llm.summary.model.rstrip("/").rsplit("/", 1)[-1]
    return f"{name}, {llm.summary.isa}, {llm.summary.threads} threads, {llm.summary.kv_dtype} KV"
