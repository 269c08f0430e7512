"""`octavo serve` and `octavo key` as processes: what they say, how they end, and what a restart finds."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

Serve = Callable[..., "Serving"]
WITHIN = 120


class Serving:
    """A running ``octavo serve``: its address, and what it writes to stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None and process.stderr is not None
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self.stderr.extend, args=(process.stderr,))
        self._reader.start()
        self.url = process.stdout.readline().strip()
        if not self.url:
            self.end()
        assert self.url.startswith("http://"), "".join(self.stderr)

    def end(self) -> int:
        """Wait until it has ended by itself; its exit status."""
        status = self.process.wait(WITHIN)
        self._reader.join()
        return status

    def lines(self) -> list[dict[str, Any]]:
        """What it logged, but for the first line: that it serves, and what."""
        first, *others = [json.loads(line) for line in self.stderr if line.startswith("{")]
        assert (first["event"], first["url"]) == ("serving", self.url)
        assert 0 < first["kv_bytes"] <= 16 * 2**20 and first["kv_tokens"] > 0 and first["weight_bytes"] > 0
        return others


@pytest.fixture
def serve(environment: dict[str, str], roomy_model: Path) -> Iterator[Serve]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **variables: str) -> Serving:
        command = [sys.executable, "-m", "octavo", "serve", str(roomy_model), "--port", "0", "--kv-memory", "16MiB"]
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        started.append(process)
        return Serving(process)

    yield start
    for process in started:
        process.kill()
        process.wait()


def body(max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "the fox", "max_tokens": max_tokens, "ignore_eos": True, **fields}


class Stream:
    """A streamed completion that has begun, read on a thread of its own."""

    def __init__(self, url: str, path: str = "/v1/completions", **fields: Any) -> None:
        self.text, self.error = "", None
        begun = threading.Event()

        def read() -> None:
            try:
                with httpx.stream("POST", f"{url}{path}", json={"stream": True, **fields}, timeout=WITHIN) as reply:
                    for piece in reply.iter_text():
                        self.text += piece
                        begun.set()
            except httpx.HTTPError as error:
                self.error: httpx.HTTPError | None = error
            begun.set()

        self._thread = threading.Thread(target=read)
        self._thread.start()
        assert begun.wait(WITHIN)

    def end(self) -> str:
        self._thread.join(WITHIN)
        return self.text


def refuses_connections(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


LONG = 8000


def test_it_says_its_address_serves_and_ends_with_0(serve: Serve) -> None:
    serving = serve("--served-model-name", "m", "--served-model-name", "n")
    names = [model["id"] for model in httpx.get(f"{serving.url}/v1/models").json()["data"]]
    assert names == ["m", "n"]
    assert httpx.post(f"{serving.url}/v1/completions", json=body()).status_code == 200
    serving.process.send_signal(signal.SIGTERM)
    assert serving.end() == 0
    assert [line["endpoint"] for line in serving.lines()] == ["/v1/models", "/v1/completions"]
    assert {line["level"] for line in serving.lines()} == {"info"}


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_listening_and_lets_streams_end(serve: Serve, kind: signal.Signals) -> None:
    serving = serve("--served-model-name", "m", "--shutdown-timeout", 10 * WITHIN)
    stream = Stream(serving.url, **body(LONG))
    serving.process.send_signal(kind)
    until(lambda: refuses_connections(serving.url))
    assert serving.process.poll() is None, "the stream was to end first"
    text = stream.end()
    assert stream.error is None and text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text
    assert serving.end() == 0
    [line] = serving.lines()
    assert (line["output_tokens"], line["finish_reasons"]) == (LONG, ["length"])


def test_what_takes_too_long_ends_with_an_error_event_of_its_dialect(serve: Serve) -> None:
    serving = serve("--served-model-name", "m", "--shutdown-timeout", "0")
    message = {"model": "m", "max_tokens": LONG, "messages": [{"role": "user", "content": "the fox"}]}
    streams = [Stream(serving.url, **body(LONG)), Stream(serving.url, "/v1/messages", **message, temperature=0)]
    serving.process.send_signal(signal.SIGTERM)
    openai, anthropic = (stream.end() for stream in streams)
    assert serving.end() == 0
    assert [stream.error for stream in streams] == [None, None]
    assert "shutting down" in openai.rstrip().split("\n\n")[-1]
    last = anthropic.rstrip().split("\n\n")[-1]
    assert last.startswith("event: message_stop") or (last.startswith("event: error") and "shutting down" in last)
    assert serving.lines()[-1]["level"] in ("warning", "info")
    first = next(line for line in serving.lines() if line["endpoint"] == "/v1/completions")
    assert (first["finish_reasons"], first["level"]) == (["abort"], "warning")


def test_a_second_signal_ends_at_once(serve: Serve) -> None:
    serving = serve("--served-model-name", "m")
    stream = Stream(serving.url, **body(LONG))
    serving.process.send_signal(signal.SIGTERM)
    until(lambda: refuses_connections(serving.url))
    begun = time.monotonic()
    serving.process.send_signal(signal.SIGTERM)
    assert serving.end() == 130
    assert time.monotonic() - begun < 10
    stream.end()
    assert stream.error is not None, "it was cut off, not ended"
    assert not any("Traceback" in line for line in serving.stderr)


def test_a_kill_breaks_streams_and_a_restart_serves(serve: Serve) -> None:
    serving = serve("--served-model-name", "m")
    stream = Stream(serving.url, **body(LONG))
    serving.process.kill()
    stream.end()
    assert isinstance(stream.error, httpx.RemoteProtocolError | httpx.ReadError)
    assert "[DONE]" not in stream.text
    assert serving.end() == -signal.SIGKILL
    again = serve("--served-model-name", "m")
    assert httpx.post(f"{again.url}/v1/completions", json=body()).status_code == 200


def test_a_tenant_s_salt_survives_a_restart(
    serve: Serve, environment: dict[str, str], tmp_path: Path, octavo: Any
) -> None:
    """Which is what a cache that outlives the process needs; a new key of the same tenant has it, too."""
    octavo("key", "alice", "--file", tmp_path / "keys")
    secret = Path(environment["OCTAVO_CACHE"]) / "server" / "secret"
    secrets = []
    for _ in range(2):
        serving = serve("--api-key-file", tmp_path / "keys")
        secrets.append(secret.read_bytes())
        serving.process.kill()
    assert secrets[0] == secrets[1] and len(secrets[0]) == 32


def test_keys_of_file_and_environment_open_it(serve: Serve, tmp_path: Path, octavo: Any) -> None:
    made = octavo("key", "alice", "--file", tmp_path / "keys")
    key = made.stdout.strip()
    assert made.returncode == 0 and key and key not in (tmp_path / "keys").read_text()
    serving = serve("--api-key-file", tmp_path / "keys", OCTAVO_ADMIN_KEY="the-admin")

    def status(path: str, key: str) -> int:
        return httpx.get(f"{serving.url}{path}", headers={"x-api-key": key}).status_code

    assert [status("/v1/models", "x"), status("/v1/models", key), status("/metrics", key)] == [401, 200, 403]
    assert [status("/v1/models", "the-admin"), status("/metrics", "the-admin")] == [200, 200]
    serving.process.send_signal(signal.SIGTERM)
    assert serving.end() == 0
    text = "".join(serving.stderr)
    assert key not in text and "the-admin" not in text
    assert [line["tenant"] for line in serving.lines() if "tenant" in line] == ["alice", "alice", "admin"]


def test_without_a_file_the_line_is_shown_beside_the_key(octavo: Any) -> None:
    done = octavo("key", "bob", "--admin")
    assert done.returncode == 0
    assert done.stdout.startswith("octavo-") and len(done.stdout.splitlines()) == 1
    assert "bob sha256:" in done.stderr and done.stderr.rstrip().endswith(" admin")
    assert done.stdout.strip() not in done.stderr
    assert octavo("key", "bob").stdout != done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--host", "0.0.0.0"), ("--api-key-file", "--allow-anyone")),
        (("serve", "--port", "70000"), ("port", "65535")),
        (("serve", "--host", ""), ("host",)),
        (("serve", "--host", "no.such.host.invalid"), ("without API keys",)),
        (("serve", "--host", "no.such.host.invalid", "--allow-anyone"), ("cannot listen", "no.such.host.invalid")),
        (("serve", "--api-key-file", "/no/such/file"), ("/no/such/file",)),
        (("serve", "--max-body", "0"), ("positive",)),
        (("serve", "--max-queue", "-1"), ("max_queue",)),
        (("serve", "--timeout", "0"), ("timeout",)),
        (("serve", "--timeout", "nan"), ("timeout",)),
        (("serve", "--shutdown-timeout", "-1"), ("shutdown_timeout",)),
        (("serve", "--log-level", "loud"), ("debug, info, warning, error",)),
        (("serve", "--cors-origin", "chat.example.com"), ("cors_origins", "chat.example.com")),
        (("serve", "--served-model-name", ""), ("model_names",)),
        (("serve", "--share-cache", "alice,bob"), ("without API keys", "--share-cache")),
        (("key", "two words"), ("tenant", "two words")),
        (("key", "alice", "--file", "/no/such/folder/keys"), ("/no/such/folder/keys",)),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_a_model_is_loaded(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    assert_one_line_error_in_process: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    monkeypatch.delenv("OCTAVO_ADMIN_KEY", raising=False)
    assert_one_line_error_in_process(list(arguments), 1, *words)


def test_a_port_in_use_is_said_before_a_model_is_loaded(assert_one_line_error_in_process: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_one_line_error_in_process(["serve", "--port", port], 1, "in use", "--port 0")


def test_an_empty_key_in_the_environment_does_not_leave_the_door_open(
    assert_one_line_error_in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "")
    assert_one_line_error_in_process(["serve"], 1, "OCTAVO_API_KEY")


def test_help_of_serve_loads_nothing_heavy(environment: dict[str, str]) -> None:
    code = "import sys; from octavo.cli import main; main(['serve', '--help']); print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=WITHIN)
    assert not {"numpy", "fastapi", "uvicorn", "asyncio"} & set(done.stdout.splitlines()[-1].split())
