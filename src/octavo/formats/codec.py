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
    What is in the KV pool is ``encode_key(k)`` and ``encode_value(v)``: the native core computes in float32 and in the
    same order, and agrees bit for bit. No function changes what it is given.

    Attributes:
        NAME: what users and the native core call it.
        HEAD_DIM_STEP: a head_dim must be a multiple of this.
        BITS: of a code, as it is stored.
        CODE_TYPE: of ``codes``; codes of 4 bits have a byte each until they are in a tile.
    """

    NAME: str
    HEAD_DIM_STEP: int
    BITS: int
    CODE_TYPE: type[np.integer[Any]]

    def code_bytes(self, head_dim: int) -> int:
        """Bytes of one vector's codes."""
        ...

    def scale_bytes(self, head_dim: int) -> int:
        """Bytes of what one vector has beside its codes; 0 if that is nothing."""
        ...

    def encode_key(self, x: Floats) -> Encoded:
        """Keys ``x [n, head_dim]`` float32, after RoPE, written down, each by itself. Zeros give zero bytes.

        A codec that turns keys (:func:`octavo.formats.hadamard.hadamard`) needs queries that are turned alike.
        """
        ...

    def encode_value(self, x: Floats) -> Encoded:
        """Values ``x [n, head_dim]`` float32 written down, each by itself, and finite. Zeros give zero bytes."""
        ...

    def decode(self, codes: Codes, scales: Scales) -> Floats:
        """What is read from there, float32 ``[n, head_dim]``. Turned keys come back turned."""
        ...
