import tracemalloc

import numpy as np
import pytest

from octavo import _native
from octavo.errors import ConfigError, WeightsError
from octavo.model.base import Tensor
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_folder import HfFolder
from octavo.model.weights import choose_isa, load_model


@pytest.fixture
def folder(random_llama, config, tmp_path):
    random_llama(config).save_pretrained(tmp_path / "model")
    return HfFolder(tmp_path / "model", "model")


def test_equal_weights_have_one_digest_whatever_file_holds_them(
    folder, random_llama, write_gguf, config, metadata, tmp_path
):
    random_llama(config).save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    sources = [folder, HfFolder(tmp_path / "sharded", "sharded")]
    sources += [GgufSource(write_gguf(random_llama(config), metadata, storage=kind), kind) for kind in ("BF16", "F32")]
    loaded = [load_model(source, threads=1) for source in sources]
    assert len({model.weights_digest for model in loaded}) == 1


def test_one_changed_weight_changes_the_digest(folder, random_llama, config, tmp_path):
    model = random_llama(config)
    model.model.layers[1].mlp.down_proj.weight.data[3, 5] += 1
    model.save_pretrained(tmp_path / "changed")
    changed = load_model(HfFolder(tmp_path / "changed", "changed"), threads=1)
    assert changed.weights_digest != load_model(folder, threads=1).weights_digest


def test_every_instruction_set_packs_the_same_bytes(folder):
    # The packed copy's key leaves the instruction set out because of this.
    digests = {load_model(folder, isa=isa, threads=1).weights_digest for isa in _native.supported_isas()}
    assert len(digests) == 1


def test_progress_ends_at_the_whole(folder):
    seen = []
    load_model(folder, threads=1, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("isa", ["avx9000", "AVX2"])
def test_an_instruction_set_this_machine_lacks_is_refused_with_what_it_offers(folder, monkeypatch, isa):
    with pytest.raises(ConfigError, match=rf"isa is '{isa}'; this machine offers .*generic"):
        load_model(folder, isa=isa)
    monkeypatch.setenv("OCTAVO_ISA", isa)
    with pytest.raises(ConfigError, match=rf"OCTAVO_ISA is '{isa}'"):
        load_model(folder)


def test_the_instruction_set_is_the_argument_then_the_environment_then_the_best(folder, monkeypatch):
    monkeypatch.delenv("OCTAVO_ISA", raising=False)
    assert choose_isa() == _native.supported_isas()[0]
    monkeypatch.setenv("OCTAVO_ISA", "generic")
    assert load_model(folder, threads=1).model.isa == "generic"
    assert choose_isa(_native.supported_isas()[0]) == _native.supported_isas()[0]


@pytest.mark.parametrize("fault", ["twice", "missing", "foreign", "shape"])
def test_a_source_that_gives_other_tensors_than_it_promised_is_caught(folder, monkeypatch, fault):
    tensors = list(folder.tensors())
    if fault == "twice":
        tensors.append(tensors[3])
    elif fault == "missing":
        tensors.pop()
    elif fault == "foreign":
        tensors.append(Tensor("bias", 0, np.zeros(64, np.uint16)))
    else:
        tensors[0] = tensors[0]._replace(bits=tensors[0].bits[:-1])
    monkeypatch.setattr(folder, "tensors", lambda: iter(tensors))
    with pytest.raises(WeightsError):
        load_model(folder, threads=1)


def test_loading_needs_one_tensor_beside_the_packed_weights(smollm2_gguf):
    source = GgufSource(smollm2_gguf, "smollm2")
    tracemalloc.start()
    load_model(source, threads=1, packed_copies=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = 2 * source.spec.vocab_size * source.spec.hidden_size
    # The packed weights are the core's own mapping and not counted; a chunk is dequantised beside the tensor.
    assert peak < largest + 48 * 2**20
