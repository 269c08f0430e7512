import errno
import logging
import os
import stat

import numpy as np
import pytest

from octavo.model import packed
from octavo.model.gguf_source import GgufSource
from octavo.model.packed import PackedCopy
from octavo.model.weights import load_model


@pytest.fixture
def source(random_llama, write_gguf, config, metadata):
    return GgufSource(write_gguf(random_llama(config), metadata, storage="Q8_0"), "small")


@pytest.fixture
def reads(monkeypatch):
    """Counts how often weights are dequantised."""
    count, tensors = [], GgufSource.tensors

    def counted(self):
        count.append(self.name)
        return tensors(self)

    monkeypatch.setattr(GgufSource, "tensors", counted)
    return count


def contents(loaded) -> bytes:
    return b"".join(buffer.tobytes() for _, buffer in loaded.model.buffers())


def test_the_second_start_reads_the_copy_and_has_the_same_weights(source, reads):
    first, second = load_model(source, threads=1), load_model(source, threads=1)
    assert len(reads) == 1
    assert contents(first) == contents(second)
    assert first.weights_digest == second.weights_digest


def test_a_copy_is_its_owners_only_and_no_temporary_file_stays(source, private_cache):
    load_model(source, threads=1)
    (path,) = (private_cache / "packed").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_copy_is_kept_when_told_so_or_when_nothing_is_dequantised(
    source, random_llama, write_gguf, config, metadata, private_cache
):
    load_model(source, threads=1, packed_copies=False)
    load_model(GgufSource(write_gguf(random_llama(config), metadata), "plain"), threads=1)
    assert not (private_cache / "packed").exists()


@pytest.mark.parametrize("where", [0, 9, 40, 5000, -1])
def test_a_flipped_byte_anywhere_is_a_miss_that_is_rewritten(source, reads, where, caplog):
    whole, path = load_model(source, threads=1), PackedCopy(source).path
    original = path.read_bytes()
    damaged = bytearray(original)
    damaged[where] ^= 0x10
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        again = load_model(source, threads=1)
    assert len(reads) == 2
    assert contents(again) == contents(whole)
    assert path.read_bytes() == original
    assert "written anew" in caplog.text


@pytest.mark.parametrize("change", [lambda b: b[:0], lambda b: b[:11], lambda b: b[:-1], lambda b: b + b"x"])
def test_a_copy_of_the_wrong_length_is_a_miss(source, reads, change):
    whole, path = load_model(source, threads=1), PackedCopy(source).path
    path.write_bytes(change(path.read_bytes()))
    assert contents(load_model(source, threads=1)) == contents(whole)
    assert len(reads) == 2


def test_a_copy_of_another_model_is_a_miss(source, random_llama, write_gguf, config, metadata, tmp_path, reads):
    model = random_llama(config)
    model.model.norm.weight.data *= 2
    other = GgufSource(write_gguf(model, metadata, storage="Q8_0", path=tmp_path / "other.gguf"), "other")
    wanted = contents(load_model(source, threads=1))
    load_model(other, threads=1)
    PackedCopy(source).path.write_bytes(PackedCopy(other).path.read_bytes())
    assert contents(load_model(source, threads=1)) == wanted
    assert len(reads) == 3


def test_a_changed_weight_file_has_another_key(source):
    before = PackedCopy(source).key
    (path,) = source.files()
    os.utime(path, ns=(1, 1))
    assert PackedCopy(source).key != before


def test_a_full_disk_costs_the_copy_and_nothing_else(source, monkeypatch, private_cache, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(packed, "write_all", full)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(source, threads=1)
    assert np.frombuffer(contents(loaded), np.uint8).any()
    assert list((private_cache / "packed").iterdir()) == []
    assert "No space left" in caplog.text


def test_a_cache_that_cannot_be_written_costs_the_copy_and_nothing_else(source, private_cache, caplog):
    private_cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        load_model(source, threads=1)
    assert "cannot keep packed weights" in caplog.text


def test_the_copies_used_longest_ago_make_room(source, private_cache, monkeypatch):
    load_model(source, threads=1)
    kept = PackedCopy(source).path
    size = kept.stat().st_size
    old, recent = (kept.with_name(f"{name}.packed") for name in ("old", "recent"))
    for age, path in ((100, old), (50, recent)):
        path.write_bytes(b"x" * size)
        os.utime(path, (kept.stat().st_mtime - age,) * 2)
    kept.unlink()
    monkeypatch.setattr(packed, "LIMIT_BYTES", 2 * size + packed._MAX_HEADER)
    load_model(source, threads=1)
    assert {path.name for path in (private_cache / "packed").iterdir()} == {kept.name, recent.name}


def test_the_embedded_model_is_the_same_with_and_without_its_copy(smollm2_gguf):
    source = GgufSource(smollm2_gguf, "smollm2")
    written, read = load_model(source, threads=1), load_model(source, threads=1)
    assert written.weights_digest == read.weights_digest
    for (name, one), (_, other) in zip(written.model.buffers(), read.model.buffers(), strict=True):
        assert np.array_equal(one, other), name
