"""The shapes of work that engines are compared on, and what one measurement of each gives.

Only the standard library here, and in all of this package that an engine's own environment imports: Octavo is not
installed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DECODE_STEPS = 32
"""Timed steps of one measurement of decode."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``count`` sequences of ``length`` tokens.

    ``decode``: continued together. ``prefill``: computed, up to the first new token. ``ttft``: computed once, cold, and
    then again with ``new`` tokens more, from the engine's prefix cache.
    """

    kind: Literal["decode", "prefill", "ttft"]
    count: int
    length: int
    new: int = 0

    @property
    def name(self) -> str:
        """As it is typed after ``--only``."""
        return {"decode": f"{self.count}x{self.length}", "prefill": f"prefill-{self.length}", "ttft": "ttft"}[self.kind]

    @property
    def title(self) -> str:
        return {
            "decode": f"decode, {self.count} x {self.length:,}",
            "prefill": f"prefill, {self.length:,}",
            "ttft": f"first token, {self.length:,} cached + {self.new} new",
        }[self.kind]

    @property
    def num_timed_tokens(self) -> int:
        """Tokens that the seconds of a `Timing` are for."""
        return {"decode": self.count, "prefill": self.count * self.length, "ttft": 1}[self.kind]


SHAPES = (
    *(Shape("decode", count, 128) for count in (1, 8, 16, 32)),
    *(Shape("decode", count, 1024) for count in (1, 8)),
    Shape("decode", 1, 7900),
    *(Shape("prefill", 1, length) for length in (512, 1024, 4096)),
    Shape("ttft", 1, 4000, 40),
)
MAX_NUM_SEQS = max(shape.count for shape in SHAPES)
MAX_MODEL_LEN = 8192
NUM_KV_TOKENS = 16_384
"""Room for the keys and values of every shape, and of the prefix of an earlier one."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one decode step, one prefill, or one first token; ``cold``: of the first token without the cache."""

    seconds: float
    cold: float | None = None
