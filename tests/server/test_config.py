"""What a server may be told, and that nothing else is taken."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", None),
        ("port", -1),
        ("port", 65536),
        ("port", "8000"),
        ("port", True),
        ("max_body", "lots"),
        ("max_body", 0),
        ("max_queue", -1),
        ("max_queue", 1.5),
        ("max_concurrency", 0),
        ("max_connections", 0),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", "1"),
        ("client_timeout", 0),
        ("client_timeout", True),
        ("keep_alive", -1),
        ("shutdown_timeout", -0.1),
        ("max_stored", -1),
        ("max_stored_bytes", "x"),
        ("model_names", "name"),
        ("model_names", [""]),
        ("model_names", [1]),
        ("cors_origins", "https://example.com"),
        ("cors_origins", ["example.com"]),
        ("cors_origins", ["https://example.com/"]),
        ("allow_anyone", 1),
        ("public_metrics", "yes"),
        ("vllm_metrics", None),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**{field: value})


def test_what_makes_sense_is_kept_and_never_changes() -> None:
    config = ServerConfig(max_body="1MiB", cors_origins=["*"], model_names=["a", "b"], shutdown_timeout=0, max_queue=0)
    assert config.max_body_bytes == 2**20
    assert (config.cors_origins, config.model_names) == (("*",), ("a", "b"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.port = 1  # type: ignore[misc]
