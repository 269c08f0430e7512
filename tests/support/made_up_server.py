"""A server that benchmarks can measure where there is none: it streams as servers do, and checks what it is asked.

    python made_up_server.py PORT

A reply to a chat is one word per token, made from the last message, so that a client that sends another history than
it was told is refused. ``prompt_tokens`` is the number of messages, or the length of the prompt.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "made-up"


def words(prompt: str, num_tokens: int) -> list[str]:
    """The reply to ``prompt``, a piece for each token."""
    return [f" {len(prompt)}.{number}" for number in range(num_tokens)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._whole(200, {"data": [{"id": MODEL}]})
        else:
            self._whole(200 if self.path == "/ready" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = body.get("messages", [])
        if messages and not _is_own_history(messages, body["max_tokens"]):
            self._whole(400, {"error": {"message": "another history"}})
            return
        prompt = messages[-1]["content"] if messages else body["prompt"]
        size = len(messages) or len(prompt)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in words(prompt, body["max_tokens"]):
            part: dict[str, Any] = {"delta": {"content": word}} if messages else {"text": word}
            self._frame({"choices": [part], "usage": None})
        details = {"cached_tokens": size - 1}
        usage = {"prompt_tokens": size, "completion_tokens": body["max_tokens"], "prompt_tokens_details": details}
        self._frame({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _frame(self, frame: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(frame).encode() + b"\n\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def _whole(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the log is for what goes wrong."""


def _is_own_history(messages: list[dict[str, str]], num_tokens: int) -> bool:
    asked = [message["content"] for message in messages if message["role"] == "user"]
    replied = [message["content"] for message in messages if message["role"] == "assistant"]
    return replied == ["".join(words(prompt, num_tokens)) for prompt in asked[:-1]]


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # clients that come at once do not have to come again a second later


if __name__ == "__main__":
    _Server(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
