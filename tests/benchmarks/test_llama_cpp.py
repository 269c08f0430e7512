"""llama.cpp's own programs are driven: here one that is made up stands in for its benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.peers import llama_cpp
from benchmarks.peers.errors import PeerError
from benchmarks.peers.shapes import DECODE_STEPS, Shape, Timing

RESULT = '{"t_pp": 0.5, "t_tg": 64.0}'


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> llama_cpp._LlamaCpp:
    monkeypatch.setattr(llama_cpp, "_Server", lambda binary, settings: None)
    return llama_cpp._LlamaCpp(tmp_path, tmp_path / "model.gguf", 2)


def program(tmp_path: Path, script: str) -> None:
    path = tmp_path / "llama-batched-bench"
    path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
    path.chmod(0o755)


def test_decode_and_prefill_are_told_apart(engine: llama_cpp._LlamaCpp, tmp_path: Path) -> None:
    program(tmp_path, f"echo; echo '{RESULT}'")
    assert engine.measure(Shape("decode", 8, 128), 0) == Timing(64.0 / DECODE_STEPS)
    assert engine.measure(Shape("prefill", 1, 512), 0) == Timing(0.5)


def test_a_run_that_printed_nothing_is_run_again(engine: llama_cpp._LlamaCpp, tmp_path: Path) -> None:
    program(tmp_path, f"if [ -e again ]; then echo '{RESULT}'; fi; touch again")
    assert engine.measure(Shape("prefill", 1, 512), 0) == Timing(0.5)


def test_one_that_never_prints_is_an_error(engine: llama_cpp._LlamaCpp, tmp_path: Path) -> None:
    program(tmp_path, "true")
    with pytest.raises(PeerError, match="printed no result"):
        engine.measure(Shape("prefill", 1, 512), 0)
