"""Addresses that are not there: those that are meant instead."""

from __future__ import annotations

import pytest

from octavo.server.addresses import nothing_at

KNOWN = ("/v1/models", "/v1/chat/completions", "/v1/messages", "/health")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/v1/health", "/health"),
    ],
)
def test_who_has_v1_once_too_often_or_not_at_all_is_told_where_it_belongs(path: str, meant: str) -> None:
    assert nothing_at(path, KNOWN).startswith(f"there is nothing at '{path}', but at {meant}: the base URL of OpenAI's")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1/models", "/v1/models"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/message", "/v1/messages"),
    ],
)
def test_a_path_that_is_almost_right_is_corrected(path: str, meant: str) -> None:
    assert nothing_at(path, KNOWN) == f"there is nothing at '{path}'; did you mean {meant}?"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/api/tags", f"/{'x/' * 10_000}"])
def test_for_all_others_there_is_the_list(path: str) -> None:
    assert nothing_at(path, KNOWN).endswith("; /openapi.json lists what there is")
