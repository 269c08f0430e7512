"""What longrope and YaRN make of a rotary embedding: a factor for each frequency, one for cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from octavo.errors import UnsupportedModelError
from octavo.model.fields import float32_as_written
from octavo.model.spec import LongRope, RopeSpec


class Rotary(NamedTuple):
    """The rotary embedding of a model, and the other one that it has for long contexts, if it has one."""

    rope: RopeSpec
    long: LongRope | None = None


def longrope(
    theta: float, dim: int, *, short: Sequence[float], long: Sequence[float], original: int, scale: float
) -> Rotary:
    """LongRoPE (Ding et al. 2024): ``short`` factors up to ``original`` tokens, ``long`` ones beyond.

    Factors and ``scale`` are float32, in transformers and in GGUF files, so that all files of a model agree.
    """
    with np.errstate(over="ignore"):  # infinity is refused with the spec's own message
        short, long = (tuple(map(float, np.array(factors, np.float32))) for factors in (short, long))
        scale = float32_as_written(scale)
    rope, other = (RopeSpec(theta, dim, kind="factors", freq_factors=f, scale=scale) for f in (short, long))
    return Rotary(rope, LongRope(original, other))


def longrope_scale(factor: float, original: int) -> float:
    """By what cosines and sines are multiplied where nothing else is said: sqrt(1 + ln(factor) / ln(original)).

    Args:
        factor: how many times longer than ``original`` the context was made.
    """
    if original < 2:
        raise UnsupportedModelError(f"longrope needs an original context of 2 tokens or more, not {original}")
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def yarn(
    theta: float,
    dim: int,
    *,
    factor: float,
    original: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    scale: float | None = None,
) -> RopeSpec:
    """YaRN (Peng et al. 2023): slow frequencies divided by ``factor``, fast ones kept, those between blended.

    Args:
        original: the context before it was made ``factor`` times longer.
        beta_fast: a frequency that turns more often than this within ``original`` is kept.
        beta_slow: one that turns less often is divided.
        truncate: whether the range of those between begins and ends at whole frequencies.
        scale: of cosines and sines; by default the paper's, :func:`yarn_scale`.
    """
    try:
        ends = [
            dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (beta_fast, beta_slow)
        ]
        low, high = (math.floor(ends[0]), math.ceil(ends[1])) if truncate else ends
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise UnsupportedModelError(
            f"YaRN cannot blend with rope_theta {theta}, beta_fast {beta_fast} and beta_slow {beta_slow}"
        ) from error
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001
    divided = [min(max((i - low) / width, 0.0), 1.0) for i in range(dim // 2)]
    return RopeSpec(
        theta,
        dim,
        kind="factors",
        freq_factors=tuple(1 / (share / factor + (1 - share)) for share in divided),
        scale=yarn_scale(factor) if scale is None else scale,
    )


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """By what YaRN multiplies cosines and sines where nothing else is said: 1 + 0.1 * weight * ln(factor)."""
    return 1 + 0.1 * weight * math.log(factor) if factor > 1 else 1.0
