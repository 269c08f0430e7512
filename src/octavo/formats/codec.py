"""Codec: what every file of a format offers. A module is one."""

from __future__ import annotations

from typing import Protocol


class Codec(Protocol):
    """One way to write a vector down: a key or a value of one token and one KV head, ``head_dim`` elements.

    The codes and the scales of a vector are stored apart: a block has a region for each.
    """

    NAME: str
    HEAD_DIM_STEP: int

    def code_bytes(self, head_dim: int) -> int: ...
    def scale_bytes(self, head_dim: int) -> int: ...
