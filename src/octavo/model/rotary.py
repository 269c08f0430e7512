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
