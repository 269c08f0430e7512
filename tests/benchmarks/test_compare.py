"""benchmarks.compare from its command line to its tables, on engines that are made up."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.peers.errors import PeerError
from benchmarks.peers.place import ROOT, Place
from benchmarks.peers.shapes import SHAPES, Shape

from benchmarks import compare
from octavo.model.embedded import EMBEDDED_MODEL
from octavo.model.source import resolve_model

ENGINE = """
import os, sys, types
from benchmarks.peers import engine, serve, shapes

class Made(engine.Engine):
    version = "7"
    def measure(self, shape, seed):
        if os.environ.get("FAILS"): raise ValueError("out of memory")
        return shapes.Timing(float(os.environ["SECONDS"]), cold=1.0)
    def roof(self):
        return 1e9, 1e12

module = types.ModuleType(f"benchmarks.peers.{sys.argv[1]}")
module.open_engine = lambda work, threads: Made()
sys.modules[module.__name__] = module
serve.main()
"""


class MadePeer:
    """A peer whose engine takes as long as it is told."""

    def __init__(self, name: str, **environment: str) -> None:
        self.NAME = name
        self.__name__ = f"made.{name}"
        self._environment = {"PYTHONPATH": str(ROOT), **environment}
        self.error: str | None = None
        self.is_set_up = False

    def set_up(self, place: Place) -> None:
        if self.error:
            raise PeerError(self.error)
        self.is_set_up = True

    def python(self, place: Place) -> Path:
        """An interpreter that runs the made-up engine, whatever module it is told to run."""
        path = place.folder("bin") / self.NAME
        if not path.exists():
            path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "$ENGINE" "$@"\n')
            path.chmod(0o755)
        return path

    def environment(self, place: Place, threads: int) -> Mapping[str, str]:
        return {"ENGINE": ENGINE, **self._environment}


def test_a_peer_that_cannot_be_set_up_does_not_keep_the_others(tmp_path: Path) -> None:
    peers = [MadePeer("first"), MadePeer("second"), MadePeer("third")]
    peers[1].error = "no compiler"
    said: list[str] = []
    assert compare.set_up(peers, Place(tmp_path), said.append) == 1
    assert [peer.is_set_up for peer in peers] == [True, False, True]
    assert "second: not ready: no compiler" in said
    assert said[-1] == "not set up: second"


def test_setting_up_what_works_succeeds(tmp_path: Path) -> None:
    assert compare.set_up([MadePeer("first")], Place(tmp_path), lambda _: None) == 0


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, MadePeer]:
    monkeypatch.setattr(compare, "OCTAVO", MadePeer("Octavo", SECONDS="0.5"))
    made = [
        MadePeer("llama.cpp", SECONDS="1"),
        MadePeer("OpenVINO", SECONDS="0.9"),
        MadePeer("vLLM", SECONDS="0.1", FAILS="yes"),
    ]
    return {peer.NAME: peer for peer in made}


def test_peers_that_fail_are_left_out_and_the_others_measured(peers: dict[str, MadePeer], tmp_path: Path) -> None:
    absent = MadePeer("transformers")
    absent.python = lambda place: Path("/bin/false")  # type: ignore[method-assign]
    said: list[str] = []
    shapes = [Shape("decode", 16, 128), Shape("decode", 1, 7900)]
    with compare.Run([*peers.values(), absent], Place(tmp_path), 2, said.append) as run:
        assert run.peers == ["llama.cpp", "OpenVINO", "vLLM"]
        rows = run.measure(shapes, 2)
        assert "llama.cpp 7" in run.heading()
    assert [(row.shape, row.ratio("llama.cpp"), row.best_peer, row.reached) for row in rows] == [
        (shapes[0], 2.0, "OpenVINO", True),
        (shapes[1], 2.0, "OpenVINO", True),
    ]
    assert rows[0].ratio("vLLM") is None
    assert any("transformers has ended" in line for line in said)
    assert any("vLLM: ValueError: out of memory" in line for line in said)


def test_the_table_goes_to_the_results_when_asked(
    peers: dict[str, MadePeer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(compare, "BY_NAME", peers)
    monkeypatch.setattr(compare, "add_section", lambda title, text: written.append((title, text)))
    asked = ["--only", "ttft", "--peers", "llama.cpp", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["compare", *asked, "--work", str(tmp_path), "--write"])
    compare.main()
    [(title, text)] = written
    assert title.startswith("Beside the peers (`python -m benchmarks.compare --only ttft --peers llama.cpp --repeats 1")
    assert "--write" not in title
    assert "| first token, 4,000 cached + 40 new | **500 ms (1,000)** | 1,000 ms (1,000) | 2.00 |" in text
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_shape_has_work_that_cannot_be_avoided(shape: Shape) -> None:
    work = compare.work_of(resolve_model(EMBEDDED_MODEL).spec, shape)
    assert work.bytes > 2e8
    assert work.operations > 1e8


def test_a_first_token_needs_the_new_tokens_alone() -> None:
    spec = resolve_model(EMBEDDED_MODEL).spec
    first, cold = (compare.work_of(spec, shape) for shape in (Shape("ttft", 1, 4000, 40), Shape("prefill", 1, 4000)))
    assert 40 / 4000 * cold.operations < first.operations < 3 * 40 / 4000 * cold.operations
