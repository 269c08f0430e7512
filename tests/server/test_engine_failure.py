"""An engine that fails while it serves: everybody is told in his dialect, and the process stays to be looked at."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from held_engine import failing_step
from live_server import LiveServer, served_model

from octavo.server.config import ServerConfig

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    "/v1/responses": {"input": "Hi"},
}


@pytest.fixture
def server(smollm2_gguf: Path) -> Iterator[LiveServer]:
    with served_model(smollm2_gguf, ServerConfig(shutdown_timeout=1)) as doomed:
        yield doomed


def test_streams_get_an_error_event_and_everybody_after_them_503(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    running = threading.Barrier(len(BODIES) + 1)

    def stream(path: str) -> tuple[int, str]:
        long = {"model": server.model, "stream": True, **BODIES[path]}
        if path == "/v1/completions":
            long |= {"ignore_eos": True}
        long["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 900
        text = ""
        with httpx.stream("POST", f"{server.url}{path}", json=long, timeout=60) as reply:
            for piece in reply.iter_text():
                if not text:
                    running.wait(60)
                text += piece
        return reply.status_code, text

    with ThreadPoolExecutor(len(BODIES)) as clients:
        streams = {path: clients.submit(stream, path) for path in BODIES}
        running.wait(60)
        with failing_step(server.engine, RuntimeError("the native core says no")):
            results = {path: future.result() for path, future in streams.items()}
    for path, (status, text) in results.items():
        assert status == 200
        last = text.rstrip().split("\n\n")[-1]
        assert "has failed" in last and "native core" not in text, path
        if path == "/v1/messages":
            assert last.startswith("event: error")

    health, ready = httpx.get(f"{server.url}/health"), httpx.get(f"{server.url}/ready")
    assert (health.status_code, ready.status_code) == (503, 503)
    for path, body in BODIES.items():
        for streams_it in (False, True):
            refused = httpx.post(f"{server.url}{path}", json={"model": server.model, "stream": streams_it, **body})
            assert refused.status_code in (503, 529), path
            assert "has failed" in refused.json()["error"]["message"]
    assert server.app.state.octavo.service.admission.num_under_way == 0

    metrics = httpx.get(f"{server.url}/metrics")
    assert f'octavo_engine_up{{model_name="{server.model}"}} 0.0' in metrics.text
    assert "octavo_num_requests_running" in metrics.text
    assert httpx.post(f"{server.url}/admin/cache/flush").status_code == 503
    assert httpx.get(f"{server.url}/admin/stats").status_code == 200
    assert httpx.get(f"{server.url}/v1/models").status_code == 200
    threading.Event().wait(1.2)
    said = [record for record in caplog.records if "engine has failed" in record.getMessage()]
    assert len(said) == 1 and said[0].exc_info is not None
