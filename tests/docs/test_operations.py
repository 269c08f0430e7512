"""docs/operations.md names every metric with its kind, every limit with its default, and every address there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from doc_tables import quoted, table
from live_server import LiveServer, served_model
from prometheus_client.parser import text_string_to_metric_families

from octavo.server.config import ServerConfig

PAGE = "docs/operations.md"


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with served_model(smollm2_gguf, kv_disk=tmp_path_factory.mktemp("disk") / "kv") as live:
        yield live


def test_every_metric_is_described_with_its_kind(server: LiveServer) -> None:
    described = {quoted(row[0])[0]: row[1] for row in table(PAGE, "## Metrics", ("Metric", "Kind", "What"))}
    families = list(text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text))
    assert described == {
        family.name + ("_total" if family.type == "counter" else ""): family.type for family in families
    }


def test_limits_have_the_defaults_of_the_code() -> None:
    rows = table(PAGE, "## Limits", ("Option", "Default", "Who goes beyond gets"))
    for row in rows:
        name, default = quoted(row[0])[0].removeprefix("--").replace("-", "_"), row[1]
        value = ServerConfig.__dataclass_fields__[name].default
        assert default == {"max_concurrency": "any number", "timeout": "none"}.get(name, str(value))


def test_addresses_are_there(server: LiveServer) -> None:
    for row in table(PAGE, "# Operations", ("Address", "Who may ask", "What")):
        *method, path = quoted(row[0])[0].split()
        assert httpx.request(method[0] if method else "GET", f"{server.url}{path}").status_code == 200, path
