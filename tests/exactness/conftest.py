"""The models that exactness is tested on: small random ones on every instruction set, and the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from exactness_lab import SHAPES, Lab, small_lab

from octavo import _native
from octavo.formats.kv_format import KV_DTYPES
from octavo.model.source import resolve_model
from octavo.model.weights import load_model

QUANTISED = [
    ("mha", "int8"),
    ("windowed", "int8:fp8"),
    ("hybrid", "fp8"),
    ("gqa", "int4"),
    ("post-normed, half rotated", "int4-full"),
    ("biased, one layer unrotated", "int4:bf16"),
]
"""Every codec for keys and for values, with and without windows; int4 needs a head_dim of 32."""


@pytest.fixture(params=[(shape, "bf16") for shape in SHAPES] + QUANTISED, ids=", ".join)
def lab(request: pytest.FixtureRequest, isa: str) -> Lab:
    """Each small model on each instruction set, and some of them in each KV format."""
    shape, kv_dtype = request.param
    return small_lab(shape, isa, kv_dtype)


@pytest.fixture(scope="session", params=KV_DTYPES)
def real_lab(request: pytest.FixtureRequest, smollm2_gguf: Path) -> Lab:
    """The embedded model in each KV format, on the best instruction set."""
    source = resolve_model(smollm2_gguf)
    loaded = load_model(source, threads=2)

    def model(threads: int) -> _native.Model:
        return loaded.model if threads == 2 else load_model(source, threads=threads).model

    return Lab(loaded.spec, model, loaded.weights_digest, kv_dtype=request.param)
