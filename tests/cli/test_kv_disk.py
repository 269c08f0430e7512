"""The options of the disk tier: had without asking, and never a reason not to start."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from octavo.cli.options import kv_disk
from octavo.errors import ConfigError

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_options_it_is_in_the_cache_folder_for_its_owner_alone(cache):
    found = kv_disk(None, None, None, no_disk=False)
    assert found["kv_disk"] == cache / "kv" and found["kv_disk_ttl"] is None
    assert (cache / "kv").stat().st_mode & 0o777 == 0o700


def test_what_is_given_is_taken_as_it_is(cache, tmp_path):
    found = kv_disk(str(tmp_path / "here"), "3GiB", 60.0, no_disk=False)
    assert found == {"kv_disk": tmp_path / "here", "kv_disk_limit": "3GiB", "kv_disk_ttl": 60.0}
    assert not cache.exists()


@pytest.mark.parametrize(("free", "held", "limit"), [(100, 0, 20), (10, 0, 5), (10, 4, 7), (1000, 30, 20)])
def test_the_limit_is_20_gib_or_half_of_what_is_free_if_that_is_less(cache, monkeypatch, free, held, limit):
    (cache / "kv").mkdir(parents=True)
    with (cache / "kv" / "1-0.slab").open("wb") as file:
        file.truncate(held * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free * GIB))
    assert kv_disk(None, None, None, no_disk=False)["kv_disk_limit"] == limit * GIB


def test_no_disk_keeps_nothing_and_stands_alone(cache):
    assert kv_disk(None, None, None, no_disk=True) == {}
    assert not cache.exists()
    with pytest.raises(ConfigError, match="--no-disk"):
        kv_disk(None, "3GiB", None, no_disk=True)


def test_a_default_folder_that_cannot_be_is_said_and_no_reason_to_refuse(cache, capsys):
    cache.write_text("in the way")
    assert kv_disk(None, None, None, no_disk=False) == {}
    assert "nothing is kept on the disk" in capsys.readouterr().err
