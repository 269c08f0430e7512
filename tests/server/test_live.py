from __future__ import annotations

import httpx
from live_server import LiveServer


def test_a_request_over_http_is_answered_and_leaves_the_server_idle(live: LiveServer) -> None:
    body = {"model": live.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    response = httpx.post(f"{live.openai_url}/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"]
    live.until_idle()
