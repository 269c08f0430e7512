"""The models that exactness is tested on: small random ones on every instruction set, and the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from exactness_lab import SHAPES, Lab, small_lab

from octavo import _native
from octavo.model.source import resolve_model
from octavo.model.weights import load_model


@pytest.fixture(params=SHAPES)
def lab(request: pytest.FixtureRequest, isa: str) -> Lab:
    """Each small model on each instruction set."""
    return small_lab(request.param, isa)


@pytest.fixture(scope="session")
def real_lab(smollm2_gguf: Path) -> Lab:
    """The embedded model, on the best instruction set."""
    source = resolve_model(smollm2_gguf)
    loaded = load_model(source, threads=2)

    def model(threads: int) -> _native.Model:
        return loaded.model if threads == 2 else load_model(source, threads=threads).model

    return Lab(loaded.spec, model, loaded.weights_digest)
