"""Codec: what every file of a format offers. A module is one."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.integer[Any]]
Scales = npt.NDArray[np.float16]


class Encoded(NamedTuple):
    """n vectors written down: ``codes [n, head_dim]`` integers, one an element, and ``scales [n, S]`` float16.

    S is ``scale_bytes(head_dim) / 2``: what a vector has beside its codes, in the order of a scale tile.
    """

    codes: Codes
    scales: Scales


class Codec(Protocol):
    """One way to write a vector down: a key or a value of one token and one KV head, ``head_dim`` elements.

    The codes and the scales of a vector are stored apart: a block has a region for each (:mod:`octavo.formats.layout`).
    What is in the KV pool is ``encode(prepare_key(k))`` and ``encode(prepare_value(v))``: the native core computes in
    float32 and in the same order, and agrees bit for bit. No function changes what it is given.
    """

    NAME: str
    HEAD_DIM_STEP: int
    BITS: int
    CODE_TYPE: type[np.integer[Any]]

    def code_bytes(self, head_dim: int) -> int: ...
    def scale_bytes(self, head_dim: int) -> int: ...
    def prepare_key(self, x: Floats) -> Floats: ...
    def prepare_value(self, x: Floats) -> Floats: ...
    def encode(self, x: Floats) -> Encoded: ...
    def decode(self, codes: Codes, scales: Scales) -> Floats: ...
