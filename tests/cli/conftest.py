"""A tiny random model with a tokenizer and a chat template of its own, and a way to run the real command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo import cli

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTEXT = 512
TIMEOUT = 300
"""Seconds; far more than any command here takes, for machines that are busy with other things."""
PROGRESS = ("octavo: fetching", "octavo: loading")

Octavo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: two layers, four heads over two key-value heads, random weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 10, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roomy_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a context of 8,192 tokens."""
    folder = tmp_path_factory.mktemp("roomy")
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 8192
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def cli_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all commands of the session, so that one packed copy of the embedded model serves them all."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(cli_cache: Path) -> dict[str, str]:
    """This process's own, with the tests' cache, and without what would steer Octavo."""
    environment = {**os.environ, "OCTAVO_CACHE": str(cli_cache), "NO_COLOR": "1"}
    environment.pop("OCTAVO_ISA", None)
    return environment


@pytest.fixture
def octavo(environment: dict[str, str]) -> Octavo:
    """Run the command in a process of its own; keyword arguments are environment variables, but for ``input``."""

    def run(*arguments: object, input: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "octavo", *map(str, arguments)],
            input=input,
            env={**environment, **variables},
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT,
        )

    return run


@pytest.fixture
def context() -> int:
    """Most tokens that the tiny model takes."""
    return CONTEXT


@pytest.fixture
def assert_one_line_error() -> Callable[..., None]:
    """Assert that a process failed with this status and said so in one line, which holds all of the words."""

    def check(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
        assert done.returncode == status, done.stderr
        assert done.stdout == ""
        _check_line([line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)], words)

    return check


@pytest.fixture
def assert_one_line_error_in_process(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """The same for arguments that are refused before anything is loaded; no process is started for them."""

    def check(arguments: list[str], status: int, *words: str) -> None:
        assert cli.main(arguments) == status
        shown = capsys.readouterr()
        assert shown.out == ""
        _check_line(shown.err.splitlines(), words)

    return check


def _check_line(lines: list[str], words: tuple[str, ...]) -> None:
    assert len(lines) == 1, lines
    assert lines[0].startswith("octavo: error: ")
    for word in words:
        assert word in lines[0]
