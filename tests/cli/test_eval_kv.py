"""`octavo eval-kv`: a table, a JSON file and a picture; what cannot be evaluated is said in one line, early."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from octavo import cli
from octavo.cli.eval_kv import eval_kv
from octavo.evaluate import Report
from octavo.evaluate.evaluation import DEFAULT_MAX_TOKENS

SHORT = ("--contexts", "64,512", "--tokens", "1024")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """About a token a character, with the tiny model's tokenizer."""
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog, and the dog does not mind.\n" * 120)
    return path


def evaluate(model: Path, text: Path, *options: object) -> int:
    return cli.main(["eval-kv", str(model), "--text", str(text), *map(str, options)])


def test_it_shows_a_table_for_each_context_and_writes_json_and_a_picture(
    tiny_model: Path, text: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "quality.json", tmp_path / "quality.png"
    assert evaluate(tiny_model, text, *SHORT, "--formats", "int8,int8:fp8", "--json", file, "--picture", picture) == 0
    report = Report.from_json(json.loads(file.read_text()))
    assert [each.kv_dtype for each in report.formats] == ["bf16", "int8", "int8:fp8"]
    assert report.contexts == (64, 512)
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr()
    for context in report.contexts:
        assert f"at {context} tokens of context" in shown.out
        for each in report.formats:
            assert f"{each.at(context).perplexity:.3f}" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "evaluating bf16, int8, int8:fp8" in shown.err


def test_a_format_that_the_head_dim_does_not_fit_is_left_out_of_all(
    tiny_model: Path, text: Path, cache: Path, tmp_path: Path
) -> None:
    """head_dim 16 is too small for groups of 32."""
    file = tmp_path / "quality.json"
    assert evaluate(tiny_model, text, "--contexts", 64, "--tokens", 64, "--json", file) == 0
    report = Report.from_json(json.loads(file.read_text()))
    assert [each.kv_dtype for each in report.formats] == ["bf16", "int8", "fp8"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--contexts", "1k"], ["1024", "512"]),
        (["--contexts", "512,many"], ["'many'", "8k"]),
        (["--contexts", "512,"], ["number of tokens"]),
        (["--formats", "int8,int9"], ["'int9'", "int4-full"]),
        (["--formats", "int4"], ["head_dim", "16"]),
        (["--formats", "int8", "--kv-8bit-layers", "7"], ["layer 7", "0 to 1"]),
        (["--isa", "foo"], ["'foo'", "generic"]),
        (["--threads", "0"], ["threads", "1 to 256"]),
        (["--json", "no-such-folder/quality.json"], ["cannot write", "--json"]),
        (["--json", "."], ["cannot write", "--json"]),
        (["--picture", "quality.jpg"], [".png", "--picture"]),
        (["--picture", "no-such-folder/quality.png"], ["cannot write", "--picture"]),
        (["--text", "no-such-file"], ["cannot read the text", "no-such-file"]),
    ],
)
def test_what_cannot_be_evaluated_is_one_line_before_weights_are_read(
    options, words, tiny_model, text, tmp_path, monkeypatch, assert_one_line_error_in_process
):
    monkeypatch.setattr("octavo.model.weights.load_model", lambda *_, **__: pytest.fail("weights were read"))
    monkeypatch.chdir(tmp_path)
    assert_one_line_error_in_process(["eval-kv", str(tiny_model), "--text", str(text), *options], 1, *words)


def test_a_text_shorter_than_a_context_is_one_line_with_its_tokens(
    tiny_model, tmp_path, assert_one_line_error_in_process
):
    (tmp_path / "short.txt").write_text("z" * 100)
    arguments = ["eval-kv", str(tiny_model), "--text", str(tmp_path / "short.txt"), "--contexts", "64,256,512"]
    assert_one_line_error_in_process(arguments, 1, "'short.txt' has 100 tokens", "256 or 512 tokens", "longer text")


def test_what_is_left_out_is_what_the_function_takes():
    """The command says its default without importing what evaluates: a start is to stay short."""
    assert inspect.signature(eval_kv).parameters["tokens"].default == DEFAULT_MAX_TOKENS


def test_tokens_must_be_a_number_from_1(assert_one_line_error_in_process):
    assert_one_line_error_in_process(["eval-kv", "--tokens", "0"], 2, "--tokens", "octavo eval-kv --help")


def test_memory_that_is_not_there_is_one_line_with_both_sizes(
    tiny_model, text, monkeypatch, assert_one_line_error_in_process
):
    monkeypatch.setattr("octavo.evaluate.evaluation.free_memory", lambda: 1000)
    arguments = ["eval-kv", str(tiny_model), "--text", str(text), "--contexts", "64"]
    assert_one_line_error_in_process(arguments, 1, "1,000 bytes are free", "fewer formats")
