"""Tracing: one OpenTelemetry span for each request, where the ``otel`` extra is installed and it is wanted."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

from octavo import __version__
from octavo.errors import MissingPackageError
from octavo.server.calls import Call

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}
"""Endpoints that compute answers, and what the conventions call that."""


class Tracing:
    """Makes spans after the semantic conventions for generative AI. A span is made when its request has ended: then all
    of it is known, and nothing was done for it on the way.

    Args:
        provider: where spans go; shut down by its maker.
        model: the model's name, where the request did not get so far as to name one.
    """

    def __init__(self, provider: TracerProvider, model: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("octavo", __version__)
        self._parents = TraceContextTextMapPropagator()
        self._model = model

    def record(self, call: Call, scope: Scope) -> None:
        """Make the span of a request that has ended, if it is one that computes answers."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        operation = _OPERATIONS.get(call.endpoint)
        if operation is None:
            return
        end = time.time_ns()
        headers = Headers(scope=scope)
        parent = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._parents.extract(parent),
            kind=SpanKind.SERVER,
            attributes=self._attributes(call, operation),
            start_time=end - int(call.duration * 1e9),
        )
        if call.has_failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def _attributes(self, call: Call, operation: str) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "octavo",
            "gen_ai.request.model": self._model,
            "http.request.method": call.method,
            "http.response.status_code": call.status or 0,
            "url.path": call.endpoint,
            "octavo.request_id": call.request_id,
        }
        if call.error is not None:
            attributes["error.type"] = call.error
        if call.entries:
            attributes["gen_ai.response.model"] = self._model
            attributes["gen_ai.response.finish_reasons"] = [out for entry in call.entries for out in entry.outcomes]
            attributes.update(call.usage.opentelemetry())
        return attributes


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables name a place for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environment.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))


def open_provider(*, required: bool) -> TracerProvider | None:
    """A provider that sends spans where OpenTelemetry's variables say, if they say so or it is required.

    Raises:
        MissingPackageError: it is required, and the ``otel`` extra is not installed.
    """
    if not (required or is_wanted(os.environ)):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        if not required:
            return None
        raise MissingPackageError("spans need OpenTelemetry: pip install 'octavo[otel]'") from error
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "octavo"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
