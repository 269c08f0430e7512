"""One server of the embedded model for all tests that need no settings of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import LiveServer, served_model


@pytest.fixture(scope="session")
def live(smollm2_gguf: Path) -> Iterator[LiveServer]:
    """The embedded model over HTTP. Shared by the whole session: leave it idle."""
    with served_model(smollm2_gguf) as server:
        yield server
