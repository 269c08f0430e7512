"""How the process starts and ends: light imports, quiet interrupts, quiet broken pipes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import octavo
from octavo import cli
from octavo.cli.app import app


def imported(environment, *arguments):
    """The modules that a command has loaded when it ends."""
    code = "import sys, json; from octavo.cli import main; main(sys.argv[1:]); print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy(environment):
    heavy = {"numpy", "tokenizers", "gguf", "jinja2", "huggingface_hub", "torch", "transformers", "asyncio"}
    assert not imported(environment, "--help") & heavy


def test_generating_loads_nothing_it_does_not_need(environment, tiny_model):
    loaded = imported(environment, "generate", "-m", tiny_model, "--max-tokens", 2, "the fox")
    assert "octavo._native" in loaded
    assert not loaded & {"huggingface_hub", "torch", "transformers"}


def test_version_is_the_packages():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"octavo {octavo.__version__}\n"


@pytest.mark.parametrize("command", ["chat", "generate", "info", "pull", "demo"])
def test_every_command_has_help(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "--debug" in result.stdout


def test_without_a_command_the_help_is_shown_as_it_is(capsys):
    assert cli.main(["--help"]) == 0
    wanted = capsys.readouterr().out
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", wanted)


def start(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "octavo", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


LONG = ("--temperature", 0, "--max-tokens", 2000, "Write a very long story about a fox.")


def test_ctrl_c_ends_a_generation_quietly_with_130(environment, smollm2_gguf):
    process = start(environment, "generate", "-m", smollm2_gguf, *LONG)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert stderr.decode().replace("octavo: loading", "").count("\n") <= 1
    assert b"Traceback" not in stderr


def test_ctrl_c_on_a_terminal_leaves_the_shell_a_line_of_its_own(environment, smollm2_gguf):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "octavo", "generate", "-m", str(smollm2_gguf), *map(str, LONG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=environment) as process:
        os.close(slave)
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    shown = os.read(master, 1 << 16)  # the progress of loading among it
    os.close(master)
    assert shown.endswith(b"\r\n")


def test_a_reader_that_goes_away_ends_the_command_quietly(environment, smollm2_gguf):
    process = start(environment, "generate", "-m", smollm2_gguf, *LONG)
    assert process.stdout.read(1)
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(timeout=300) == 1
    assert b"Traceback" not in stderr
    assert b"error" not in stderr
    process.stderr.close()


def with_streams(environment, redirections, *arguments, **variables):
    """The command, started by a shell with these redirections after it."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "octavo", *map(str, arguments)],
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
    )


def test_a_closed_stdin_is_empty(environment, tiny_model):
    done = with_streams(environment, "<&-", "generate", "--raw", "-m", tiny_model)
    assert done.returncode == 2
    assert b"stdin is empty" in done.stderr
    assert with_streams(environment, "<&-", "chat", tiny_model).returncode == 0


def test_a_closed_stdout_is_said_before_anything_is_loaded(environment, tiny_model):
    done = with_streams(environment, ">&-", "generate", "-m", tiny_model, "hi")
    assert (done.returncode, done.stderr) == (1, b"octavo: error: standard output is closed, and answers go there\n")


def test_with_a_closed_stderr_nothing_but_the_answer_is_on_stdout(environment, tiny_model):
    done = with_streams(environment, "2>&-", "generate", "-m", tiny_model, "--max-tokens", 2, "hi")
    assert done.returncode == 0 and done.stdout and b"octavo" not in done.stdout
    done = with_streams(environment, "2>&-", "generate", "-m", tiny_model, "--top-p", 5, "hi")
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_full_disk_under_stdout_is_one_line(environment, tiny_model):
    done = with_streams(environment, ">/dev/full", "generate", "-m", tiny_model, "--max-tokens", 2, "hi")
    assert done.returncode == 1
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr


def test_an_answer_is_shown_in_any_encoding(environment, tiny_model):
    arguments = ("generate", "-m", tiny_model, "--max-tokens", 20, "caf\u00e9")
    utf8 = with_streams(environment, "", *arguments, PYTHONIOENCODING="utf-8")
    ascii = with_streams(environment, "", *arguments, PYTHONIOENCODING="ascii")
    assert (utf8.returncode, ascii.returncode) == (0, 0), ascii.stderr
    wanted = utf8.stdout.decode("utf-8").encode("ascii", "backslashreplace")
    assert ascii.stdout == wanted != utf8.stdout


@pytest.mark.parametrize("command", [("generate", "--model=", "hi"), ("info", ""), ("pull", ""), ("chat", "")])
def test_an_empty_name_is_not_the_default_model(command, assert_one_line_error_in_process):
    assert_one_line_error_in_process(list(command), 1, "the model name is empty")
