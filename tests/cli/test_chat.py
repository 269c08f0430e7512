"""`octavo chat`: turns reuse what was computed, from a pipe and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from octavo import LLM, SamplingParams
from octavo.cli.reply import stream_reply

FIGURES = re.compile(r"\[(\d+) of (\d+) prompt tokens reused \| (\d+) computed \| first token after \d")


def figures(stderr):
    """(reused, prompt tokens, computed) of every turn."""
    return [tuple(map(int, match)) for match in FIGURES.findall(stderr)]


def test_the_second_piped_turn_reuses_the_first(octavo, tiny_model):
    done = octavo("chat", tiny_model, "--max-tokens", 20, input="the quick brown fox " * 12 + "\n\njumps over\n")
    assert done.returncode == 0, done.stderr
    (first_reused, first_prompt, _), (reused, prompt, computed) = figures(done.stderr)
    assert first_reused == 0
    assert reused >= first_prompt // 16 * 16 > 0  # a random reply may be tokenised otherwise when sent again
    assert reused + computed == prompt
    assert "reused" not in done.stdout


def test_reset_begins_a_new_conversation_with_the_same_system_message(octavo, tiny_model):
    lines = "the fox\n/reset\nthe fox\n/stats\n/exit\nnever asked\n"
    done = octavo("chat", tiny_model, "--system", "the lazy dog " * 8, "--temperature", 0, input=lines)
    assert done.returncode == 0, done.stderr
    first, second = figures(done.stderr)
    assert second[1] == first[1]
    assert second[0] > 0
    assert "2 replies" in done.stderr


def test_a_piped_turn_that_does_not_fit_ends_the_chat_with_one_line(octavo, tiny_model, context):
    done = octavo("chat", tiny_model, input="z" * 1000 + "\n")
    assert done.returncode == 1
    assert f"{context:,}" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("octavo: error: ")


def test_with_the_embedded_model_a_turn_computes_only_what_was_added(octavo, smollm2_gguf):
    lines = "What is the capital of France?\nWhat is the capital of Spain?\n"
    done = octavo("chat", smollm2_gguf, "--temperature", 0, input=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["The capital of France is Paris.", "The capital of Spain is Madrid."]
    (_, first_prompt, _), (reused, prompt, _) = figures(done.stderr)
    assert first_prompt < reused
    assert prompt - reused < 25


@pytest.fixture
def typed_chat(environment):
    """Start a chat whose stdin is a terminal; gives (process, a function that types)."""
    master, slave = pty.openpty()
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "chat", *map(str, arguments)],
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        processes.append(process)
        return process, lambda text: os.write(master, text.encode())

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    os.close(master)
    os.close(slave)


def test_ctrl_c_interrupts_the_reply_and_keeps_the_chat(typed_chat, smollm2_gguf):
    process, type_ = typed_chat(smollm2_gguf, "--temperature", 0)
    type_("Write a very long story about a fox.\n")
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    type_("Say hello.\n/stats\n")
    type_("\x04")
    _, stderr = process.communicate(timeout=300)
    shown = stderr.decode()
    assert process.returncode == 0, shown
    assert "| interrupted]" in shown
    assert "2 replies" in shown
    assert len(figures(shown)) == 2
    assert "Traceback" not in shown


def test_what_was_shown_belongs_to_the_interrupted_reply(tiny_model):
    def shown_and_interrupted(text):
        raise KeyboardInterrupt

    with LLM(tiny_model, kv_memory="1MiB") as llm:
        params = SamplingParams(temperature=0, max_tokens=4)
        reply = stream_reply(llm, "fox", params, shown_and_interrupted, keep_when_interrupted=True)
    assert reply.interrupted
    assert reply.num_output_tokens == 1


def test_a_mistyped_command_is_not_sent_to_the_model(typed_chat, tiny_model):
    process, type_ = typed_chat(tiny_model, "--max-tokens", 4)
    type_("/quit\n/etc/hosts is a file\n/exit\n")
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert b"/quit is no command" in stderr
    assert len(figures(stderr.decode())) == 1


def test_a_reply_that_was_cut_says_so(octavo, smollm2_gguf):
    line = "What is the capital of France?\n"
    cut, whole = (octavo("chat", smollm2_gguf, "--temperature", 0, "--max-tokens", n, input=line) for n in (3, 30))
    assert "| cut at the token limit]" in cut.stderr
    assert "cut" not in whole.stderr


def test_a_typed_turn_that_does_not_fit_is_said_and_the_chat_goes_on(typed_chat, tiny_model, context):
    process, type_ = typed_chat(tiny_model, "--max-model-len", 32)
    type_("z" * 100 + "\n")
    type_("fox\n/exit\n")
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert b"/reset starts afresh)" in stderr
    assert len(figures(stderr.decode())) == 1
