"""The gate: a format that breaks some models is used only where an evaluation of this very model found it good."""

from __future__ import annotations

import math
import shlex

from octavo.config import EngineConfig
from octavo.errors import KVQualityError
from octavo.evaluate.report import ContextQuality, Report, increase
from octavo.evaluate.store import Place, stored
from octavo.model.base import ModelSource
from octavo.model.spec import ModelSpec
from octavo.model.weights import LoadedModel
from octavo.planner import kv_formats, needs_evaluation

MAX_PERPLEXITY_INCREASE = 0.05
"""Share by which perplexity may be above that of bf16, at the longest context that was evaluated."""
MAX_RECALL_LOSS = 1.0
"""Nats by which the mean log-probability of a recalled answer may be below that of bf16, there."""
MIN_CONTEXT = 512
"""Tokens of the longest context, at least; all that the model has if that is less."""
MIN_TOKENS = 4000
"""Tokens that were predicted there, at least: fewer say too little about one per cent."""


def check_kv_quality(source: ModelSource, loaded: LoadedModel, config: EngineConfig) -> None:
    """Refuse to start with 4-bit keys unless a stored evaluation of this model passes. Reads one small file.

    Raises:
        KVQualityError: there is no evaluation, or it does not pass; the message says what to run, or the figures.
        ConfigError: the KV format does not fit the model.
    """
    layers = kv_formats(source.spec, config)
    if not config.kv_quality_gate or not needs_evaluation(layers):
        return
    report = stored(Place.of(loaded, source.spec, layers))
    name = str(config.kv_format)
    if report is None or not is_sufficient(report, source.spec):
        raise KVQualityError(
            f"kv_dtype {name!r} has 4-bit keys, which break some models, and there is no evaluation of this one by "
            f"this build. Run: {_command(source.name, config)} (or use int4; kv_quality_gate=False, "
            "--no-kv-quality-gate, starts without one)"
        )
    if failures := shortcomings(report):
        raise KVQualityError(
            f"kv_dtype {name!r} does not pass the evaluation of this model: {' and '.join(failures)}. Use int4 or "
            "int8, or keep more layers at 8 bits (kv_8bit_layers) and evaluate again; kv_quality_gate=False, "
            "--no-kv-quality-gate, starts all the same"
        )


def is_sufficient(report: Report, spec: ModelSpec) -> bool:
    """Whether an evaluation is long enough to be relied on: of context, of text, and with recall."""
    longest = report.formats[0].contexts[-1]
    return (
        longest.context >= min(MIN_CONTEXT, spec.max_position_embeddings)
        and longest.num_tokens >= MIN_TOKENS
        and longest.recall is not None
    )


def extent(report: Report) -> tuple[int, int]:
    """How much an evaluation says: its longest context, then the tokens predicted there. More outweighs less."""
    longest = report.formats[0].contexts[-1]
    return longest.context, longest.num_tokens


def verdict(report: Report, spec: ModelSpec) -> str:
    """What the gate says to a report on bf16 and one format, as the rest of a sentence about it."""
    if not is_sufficient(report, spec):
        return (
            f"was evaluated too shortly for the quality gate, which wants {MIN_TOKENS:,} tokens and facts to recall at "
            f"a context of {min(MIN_CONTEXT, spec.max_position_embeddings):,} or more"
        )
    failures = shortcomings(report)
    return f"does not pass the quality gate: {' and '.join(failures)}" if failures else "passes the quality gate"


def shortcomings(report: Report) -> list[str]:
    """Why the last format of a sufficient report does not pass, with figures and limits; nothing if it does."""
    bf16, quality = report.formats[0].contexts[-1], report.formats[-1].contexts[-1]
    failures = []
    above = increase(quality, bf16)
    if not above <= MAX_PERPLEXITY_INCREASE:
        failures.append(
            f"perplexity at {quality.context:,} tokens is {quality.perplexity:.3f}, {above:+.1%} against "
            f"{bf16.perplexity:.3f} with bf16 (at most {MAX_PERPLEXITY_INCREASE:+.1%})"
        )
    lost = recall_loss(quality, bf16)
    if not lost <= MAX_RECALL_LOSS:
        failures.append(
            f"facts are recalled with {-lost:+.2f} nats at {quality.context:,} tokens against bf16 "
            f"(at least {-MAX_RECALL_LOSS:+.2f})"
        )
    return failures


def recall_loss(quality: ContextQuality, bf16: ContextQuality) -> float:
    """Nats by which the mean log-probability of a right answer is below that of bf16; NaN without recall."""
    if quality.recall is None or bf16.recall is None:
        return math.nan
    return bf16.recall.logprob - quality.recall.logprob


def _command(model: str, config: EngineConfig) -> str:
    words = ["octavo", "eval-kv", model, "--formats", str(config.kv_format)]
    if config.kv_8bit_layers:
        words += ["--kv-8bit-layers", ",".join(map(str, config.kv_8bit_layers))]
    if config.isa is not None:
        words += ["--isa", config.isa]
    return shlex.join(words)
