"""One OpenTelemetry span for each request that computes an answer, below its caller's, with the ledger's figures."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from octavo.errors import MissingPackageError
from octavo.server.config import ServerConfig
from octavo.server.tracing import Tracing, is_wanted, open_provider

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def server(live: LiveServer, exporter: InMemorySpanExporter) -> Iterator[LiveServer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with live_server(live.engine, ServerConfig(shutdown_timeout=1), tracing=Tracing(provider, live.model)) as traced:
        yield traced
    provider.shutdown()


def only(exporter: InMemorySpanExporter, server: LiveServer) -> tuple[ReadableSpan, dict[str, Any]]:
    server.until_idle()
    [span] = exporter.get_finished_spans()
    return span, dict(span.attributes or {})


def test_a_span_has_the_figures_of_the_usage_and_its_callers_trace(
    server: LiveServer, exporter: InMemorySpanExporter
) -> None:
    body = {"model": server.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    reply = httpx.post(f"{server.openai_url}/chat/completions", json=body, headers={"traceparent": PARENT}, timeout=60)
    span, attributes = only(exporter, server)
    usage = reply.json()["usage"]
    assert span.name == f"chat {server.model}" and span.kind is SpanKind.SERVER
    assert span.parent is not None and format(span.parent.span_id, "016x") == PARENT.split("-")[2]
    assert span.context is not None and format(span.context.trace_id, "032x") == PARENT.split("-")[1]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": server.model,
        "gen_ai.response.model": server.model,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "gen_ai.usage.cache_creation.input_tokens": usage["prompt_tokens_details"]["cache_write_tokens"],
        "http.response.status_code": 200,
        "octavo.request_id": reply.headers["x-request-id"],
    }
    assert {name: attributes[name] for name in expected} == expected
    assert span.status.status_code is StatusCode.UNSET
    assert span.start_time and span.end_time and 0 < span.end_time - span.start_time < 60e9


def test_a_caller_that_does_not_sample_has_no_span(server: LiveServer, exporter: InMemorySpanExporter) -> None:
    body = {"model": server.model, "prompt": "Hi", "max_tokens": 1}
    httpx.post(f"{server.openai_url}/completions", json=body, headers={"traceparent": UNSAMPLED}, timeout=60)
    server.until_idle()
    assert exporter.get_finished_spans() == ()


def test_a_refusal_and_a_failure_say_what_they_are(
    server: LiveServer, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpx.post(f"{server.url}/v1/messages", json={})
    span, attributes = only(exporter, server)
    assert (attributes["http.response.status_code"], span.status.status_code) == (400, StatusCode.UNSET)
    assert attributes["error.type"] and "gen_ai.usage.input_tokens" not in attributes
    exporter.clear()

    def broken(request: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(server.app.state.octavo.service.preparation, "prepare", broken)
    body = {"model": server.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    httpx.post(f"{server.url}/v1/messages", json=body)
    span, attributes = only(exporter, server)
    assert (attributes["error.type"], span.status.status_code) == ("internal", StatusCode.ERROR)
    assert "secret" not in span.to_json()


def test_probes_and_lists_have_no_span(server: LiveServer, exporter: InMemorySpanExporter) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/nothing"):
        httpx.get(f"{server.url}{path}")
    assert exporter.get_finished_spans() == ()


def test_a_broken_traceparent_is_no_parent(server: LiveServer, exporter: InMemorySpanExporter) -> None:
    body = {"model": server.model, "prompt": "Hi", "max_tokens": 1}
    httpx.post(f"{server.openai_url}/completions", json=body, headers={"traceparent": "00-zz"}, timeout=60)
    assert only(exporter, server)[0].parent is None


def test_fastapi_tells_nobody_what_was_in_a_field(
    live: LiveServer, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own spans and logs would, where the process has set up OpenTelemetry for itself."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    body = {"model": live.model, "prompt": "Hi", "secret": "a prompt"}
    assert httpx.post(f"{live.openai_url}/completions", json=body).status_code == 400
    assert exporter.get_finished_spans() == ()


def test_the_environment_switches_it_on() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert is_wanted(endpoint)
    assert is_wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"})
    assert not is_wanted({})
    assert not is_wanted({"OTEL_SERVICE_NAME": "x"})
    assert not is_wanted({**endpoint, "OTEL_SDK_DISABLED": "true"})
    assert not is_wanted({**endpoint, "OTEL_TRACES_EXPORTER": "none"})


def test_without_the_package_it_is_an_error_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert open_provider(required=False) is None
    with pytest.raises(MissingPackageError, match=r"octavo\[otel\]"):
        open_provider(required=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert open_provider(required=False) is None


def test_a_provider_names_the_service_and_ends_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    provider = open_provider(required=True)
    assert provider is not None and provider.resource.attributes["service.name"] == "octavo"
    provider.shutdown()
