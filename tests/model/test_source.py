import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from octavo.errors import ConfigError, ModelError, ModelNotFoundError
from octavo.model import source as source_module
from octavo.model.embedded import FILE_NAME
from octavo.model.source import DEFAULT_MODEL, resolve_model
from octavo.text.folder_tokenizer import tokenizer_from_folder


@pytest.fixture
def folder(random_llama, config, tmp_path) -> Path:
    random_llama(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_and_a_gguf_file_are_found_by_path(folder, random_llama, write_gguf, config, metadata):
    path = write_gguf(random_llama(config), metadata)
    assert resolve_model(folder).spec == resolve_model(str(path)).spec
    assert resolve_model(str(folder)).name == str(folder)


def test_the_default_is_the_embedded_model_in_the_cache(smollm2_gguf, private_cache):
    (private_cache / "models").mkdir(parents=True)
    (private_cache / "models" / FILE_NAME).symlink_to(smollm2_gguf)
    found = resolve_model(DEFAULT_MODEL)
    assert (found.name, found.spec.num_layers) == ("smollm2", 30)


@pytest.mark.parametrize(
    "name", ["no-such-model", "./nowhere", "/no/such/folder", "missing.gguf", "a/b.gguf", "", "  "]
)
def test_an_unknown_name_is_refused_without_asking_the_network(name, monkeypatch):
    monkeypatch.setattr(source_module, "_snapshot", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ModelNotFoundError):
        resolve_model(name)


def test_a_path_is_never_taken_for_a_hub_id(monkeypatch):
    monkeypatch.setattr(source_module, "_snapshot", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ModelNotFoundError):
        resolve_model(Path("owner/name"))


@pytest.mark.parametrize(
    "name",
    [
        5,
        None,
        b"model",
        ["model"],
        object(),
        "\0",
        "a\0b",
        "\ud800",
        "x" * 5000,
        "~nobody-of-this-name/model",
        "/proc/self/mem",
    ],
)
def test_whatever_cannot_name_a_model_is_refused_by_type(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the network"))
    with pytest.raises(ModelNotFoundError):
        resolve_model(name)


def test_a_revision_is_a_text(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the network"))
    with pytest.raises(ModelNotFoundError, match="revision"):
        resolve_model("owner/name", revision=5)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    ],
)
def test_a_file_that_cannot_be_looked_at_is_named(folder, name):
    """Its link leads where no system lets anybody look; a folder without permission fails in the same way."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("x" * 300)
    with pytest.raises(ModelError, match=re.escape(name)):
        source = resolve_model(folder)
        source.check()
        tokenizer_from_folder(folder)


def test_without_a_home_the_error_says_what_to_set(monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(ConfigError, match="OCTAVO_CACHE"):
        resolve_model("smollm2")


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(ModelNotFoundError, match="not a GGUF file"):
        resolve_model(tmp_path / "model.safetensors")


def test_only_a_hub_id_has_revisions(folder):
    with pytest.raises(ModelNotFoundError, match="only a hub id has revisions"):
        resolve_model(folder, revision="main")


def test_an_offline_hub_without_a_cached_copy_is_one_readable_error(tmp_path):
    # A process of its own: huggingface_hub reads its settings when it is imported.
    import os
    import subprocess
    import sys

    code = "from octavo.model.source import resolve_model; resolve_model('owner/name')"
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("octavo.errors.ModelNotFoundError: cannot fetch 'owner/name' from the hub")


def test_whatever_goes_wrong_in_a_fetch_is_one_readable_error(monkeypatch):
    class ReadError(Exception):
        """As httpx raises it when a connection breaks; it derives from nothing that hub or system know."""

    def broken(*_, **__):
        raise ReadError("the line\nwas cut")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(ModelNotFoundError, match=r"cannot fetch 'owner/name' .*ReadError: the line was cut"):
        resolve_model("owner/name")


def test_weights_of_a_hub_id_are_fetched_when_asked_for_and_from_the_same_commit(folder, tmp_path, monkeypatch):
    commit, asked = tmp_path / "snapshots" / "c0ffee", []

    def snapshot_download(repo_id, *, revision, allow_patterns):
        asked.append((repo_id, revision))
        commit.mkdir(parents=True, exist_ok=True)
        for pattern in allow_patterns:
            for path in folder.glob(pattern):
                shutil.copy(path, commit)
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found = resolve_model("owner/name", revision="main")
    assert not list(commit.glob("*.safetensors"))
    assert [path.name for path in found.files()] == ["model.safetensors"]
    found.check()
    assert asked == [("owner/name", "main"), ("owner/name", "c0ffee")]
