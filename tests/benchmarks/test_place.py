"""Setting up: nothing is made twice, and what fails says why and where its log is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from benchmarks.peers import models
from benchmarks.peers.errors import PeerError
from benchmarks.peers.peer import OCTAVO, PEERS
from benchmarks.peers.place import ROOT, Place


class Recorded(Place):
    """A place that writes down the commands it would run."""

    def __init__(self, work: Path, torch_index: str | None = None) -> None:
        super().__init__(work, torch_index)
        object.__setattr__(self, "commands", [])

    commands: list[list[str]]

    def run(self, peer: str, step: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.commands.append([word for word in command if not word.startswith("/")])
        self.environment(peer).mkdir(parents=True, exist_ok=True)


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    place = Recorded(tmp_path)
    place.install("made", ["a==1", "b"])
    assert place.commands[1] == ["-m", "pip", "--disable-pip-version-check", "install", "a==1", "b"]
    place.install("made", ["a==1", "b"])
    assert len(place.commands) == 2


def test_an_environment_is_made_again_for_other_versions(tmp_path: Path) -> None:
    place = Recorded(tmp_path)
    place.install("made", ["a==1"])
    place.install("made", ["a==2"])
    assert len(place.commands) == 4


def test_torch_comes_from_the_index_that_was_given(tmp_path: Path) -> None:
    place = Recorded(tmp_path, "https://example.org/cpu")
    place.install("made", ["torch==2.13.0", "b"])
    assert place.commands[1][3:] == ["install", "torch==2.13.0", "--index-url", "https://example.org/cpu"]
    assert place.commands[2][3:] == ["install", "torch==2.13.0", "b"]


def test_a_command_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"compile failed: no compiler \(see .*/made\.compile\)"):
        Place(tmp_path).run("made", "compile", ["sh", "-c", "echo no compiler; exit 2"])


def test_a_command_runs_with_the_variables_it_was_given(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run("made", "say", ["sh", "-c", "echo $WORD"], {"WORD": "hello"})
    assert place.log("made.say").read_text() == "hello\n"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_gguf_file_for_peers_has_the_model_in_sixteen_bits(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    source = tmp_path / "source.gguf"
    _write_source(source, values)
    monkeypatch.setattr("octavo.model.embedded.embedded_file", lambda: source)
    place = Place(tmp_path)
    models.make_gguf(place, dtype)
    made = gguf.GGUFReader(place.gguf(dtype))
    norm, matrix = made.tensors
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    assert (norm.tensor_type, matrix.tensor_type) == (gguf.GGMLQuantizationType.F32, kind)
    exact = gguf.dequantize(gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(gguf.dequantize(matrix.data, kind), gguf.dequantize(gguf.quantize(exact, kind), kind))
    assert made.fields["llama.block_count"].contents() == 3
    assert made.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]


def _write_source(path: Path, values: np.ndarray) -> None:
    q8 = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    writer.add_tensor("token_embd.weight", gguf.quantize(values, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_what_runs_in_a_peers_environment_needs_nothing_of_ours() -> None:
    """Without site-packages there is neither Octavo nor numpy."""
    names = [module.__name__ for module in (OCTAVO, *PEERS)]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import benchmarks.peers.serve, {', '.join(names)}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
