"""`octavo serve` with the embedded model, killed and damaged: it answers, with the bits that it has without a disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from folder_damage import flip_bits, replace_index, slabs, slot_bytes

PROMPTS = [random.Random(seed).choices(range(1000, 40_000), k=160 + 40 * seed) for seed in range(4)]
WITHIN = 120


class Serving:
    """A server of its own process."""

    def __init__(self, model: Path, *options: object) -> None:
        command = [sys.executable, "-m", "octavo", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(
            [
                *command,
                "--served-model-name",
                "m",
                "--kv-memory",
                "64MiB",
                "--max-model-len",
                "1024",
                *map(str, options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.said: list[str] = []
        self._listener = threading.Thread(target=self.said.extend, args=(self.process.stderr,))
        self._listener.start()
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.end(signal.SIGKILL)

    def end(self, kind: signal.Signals) -> str:
        """Have it end, and return what it said."""
        self.process.send_signal(kind)
        self.process.wait(WITHIN)
        self._listener.join()
        return "".join(self.said)

    def ask(self, number: int) -> Any:
        """Tokens and log-probabilities of one answer."""
        body = {"model": "m", "prompt": PROMPTS[number], "max_tokens": 4, "temperature": 0, "logprobs": 5}
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=WITHIN)
        assert response.status_code == 200, response.text
        [choice] = response.json()["choices"]
        return choice["text"], choice["logprobs"]

    def ask_all(self) -> list[Any]:
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            return list(pool.map(self.ask, range(len(PROMPTS))))

    def flush_memory(self) -> None:
        httpx.post(f"{self.url}/admin/cache/flush").raise_for_status()

    def until_written(self) -> None:
        end = time.monotonic() + WITHIN
        while httpx.get(f"{self.url}/admin/stats").json()["disk"]["gauges"]["num_queued"]:
            assert time.monotonic() < end
            time.sleep(0.05)

    def disk(self) -> dict[str, Any]:
        """What the tier has done so far."""
        found: dict[str, Any] = httpx.get(f"{self.url}/admin/stats").json()["disk"]["stats"]
        return found


Serve = Callable[..., Serving]


@pytest.fixture(scope="module")
def serve(smollm2_gguf: Path) -> Iterator[Serve]:
    started: list[Serving] = []

    def start(*options: object) -> Serving:
        started.append(Serving(smollm2_gguf, *options))
        return started[-1]

    yield start
    for serving in started:
        if serving.process.poll() is None:
            serving.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def cold(serve: Serve) -> list[Any]:
    """The answers of a server that keeps nothing."""
    serving = serve("--no-disk")
    answers = serving.ask_all()
    serving.end(signal.SIGKILL)
    return answers


def test_killed_damaged_and_beside_another_the_server_answers_as_a_cold_one(serve: Serve, cold: list[Any], tmp_path):
    folder = tmp_path / "kv"
    first = serve("--kv-disk", folder)
    assert first.ask_all() == cold
    with ThreadPoolExecutor(len(PROMPTS)) as pool:  # it is killed in the midst of these
        under_way = [pool.submit(first.ask, number) for number in range(len(PROMPTS))]
        first.end(signal.SIGKILL)
        assert all(isinstance(each.exception(), httpx.TransportError | None) for each in under_way)

    second = serve("--kv-disk", folder)
    assert second.ask_all() == cold
    assert second.disk()["num_damaged"] == 0
    third = serve("--kv-disk", folder)
    assert third.ask_all() == cold
    third_said = third.end(signal.SIGTERM)
    assert "a disk tier is one process's at a time" in third_said and str(second.process.pid) in third_said

    second.flush_memory()
    assert second.ask_all() == cold and second.disk()["num_loaded"] > 0
    for slab in slabs(folder):  # under its feet
        os.truncate(slab, slab.stat().st_size // slot_bytes(slab) // 2 * slot_bytes(slab) + 5000)
        flip_bits(folder, random.Random(1))
    second.flush_memory()
    assert second.ask_all() == cold and second.disk()["num_damaged"] > 0
    second.end(signal.SIGKILL)

    flip_bits(folder, random.Random(2))
    replace_index(folder, random.Random(3))
    fourth = serve("--kv-disk", folder)
    assert fourth.ask_all() == cold
    fourth.until_written()
    before = fourth.disk()
    fourth.flush_memory()
    assert fourth.ask_all() == cold
    assert fourth.disk()["num_damaged"] == before["num_damaged"], "what was dropped is there again"
    assert fourth.disk()["num_loaded"] > before["num_loaded"]
    fourth_said = fourth.end(signal.SIGTERM)
    assert "Traceback" not in fourth_said and fourth.process.returncode == 0
    start = next(json.loads(line) for line in fourth_said.splitlines() if line.startswith("{"))
    assert start["event"] == "serving" and start["kv_disk"] == str(folder)
