import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from octavo.model.hf_folder import INDEX_FILE, WEIGHTS_FILE, HfFolder


@pytest.fixture
def folder(random_llama, config, tmp_path) -> Path:
    random_llama(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def read(folder: Path) -> dict:
    return {(slot, layer): bits for slot, layer, bits in HfFolder(folder, "model").tensors()}


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


def bits(weight: torch.Tensor) -> np.ndarray:
    return weight.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_arrives_in_its_place(random_llama, config, tmp_path, dtype, tied):
    model = random_llama(config | {"tie_word_embeddings": tied}, dtype)
    model.save_pretrained(tmp_path)
    tensors, layer = read(tmp_path), model.model.layers[1]
    np.testing.assert_array_equal(tensors["embed", -1], bits(model.model.embed_tokens.weight))
    np.testing.assert_array_equal(tensors["final_norm", -1], bits(model.model.norm.weight))
    for slot, weight in {
        "attn_norm": layer.input_layernorm.weight,
        "q": layer.self_attn.q_proj.weight,
        "k": layer.self_attn.k_proj.weight,
        "v": layer.self_attn.v_proj.weight,
        "o": layer.self_attn.o_proj.weight,
        "mlp_norm": layer.post_attention_layernorm.weight,
        "gate": layer.mlp.gate_proj.weight,
        "up": layer.mlp.up_proj.weight,
        "down": layer.mlp.down_proj.weight,
    }.items():
        np.testing.assert_array_equal(tensors[slot, 1], bits(weight))
    assert (("lm_head", -1) in tensors) is not tied


def test_shards_hold_the_same_as_one_file(random_llama, config, folder, tmp_path):
    random_llama(config).save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    whole, sharded = read(folder), read(tmp_path / "sharded")
    assert whole.keys() == sharded.keys()
    for key, tensor in whole.items():
        np.testing.assert_array_equal(sharded[key], tensor)


def test_harmless_extras_are_accepted(folder):
    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    before = read(folder)
    change_tensors(folder, add)
    assert read(folder).keys() == before.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "lacks up of layer 1"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}), "q_proj.bias"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(96, 64)}), "layers.2.mlp.up_proj.weight"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(63)}),
            r"norm.weight has shape \[63\].*says \[64\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int32)}),
            "type I32.*BF16, F16, F32",
        ),
        (lambda t: t.update({"lm_head.weight": torch.ones(96, 64)}), "ties lm_head"),
    ],
)
def test_tensors_that_disagree_with_the_configuration_are_named(folder, change, message):
    change_tensors(folder, change)
    with pytest.raises(WeightsError, match=message):
        read(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_file_is_refused_before_anything_is_loaded(folder, keep):
    content = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(content[:keep])
    with pytest.raises(WeightsError, match=WEIGHTS_FILE):
        HfFolder(folder, "model").check()


def test_a_file_with_bytes_too_many_is_refused_with_both_sizes(folder):
    size = (folder / WEIGHTS_FILE).stat().st_size
    with (folder / WEIGHTS_FILE).open("ab") as file:
        file.write(b"more")
    with pytest.raises(WeightsError, match=f"should have {size} bytes.*has {size + 4}"):
        HfFolder(folder, "model").check()


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "BF16", "shape": [2], "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "I8", "shape": [2], "data_offsets": [4, 0]},
        {"dtype": ["BF16"], "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": [2], "data_offsets": [0]},
        {"shape": [2]},
        None,
    ],
)
def test_an_index_that_makes_no_sense_is_refused(folder, entry):
    header = json.dumps({"model.norm.weight": entry}).encode()
    (folder / WEIGHTS_FILE).write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        HfFolder(folder, "model").check()


def test_a_missing_shard_is_named(random_llama, config, tmp_path):
    random_llama(config).save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightsError, match=shard.name):
        HfFolder(tmp_path, "model").check()


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", 3])
def test_an_index_cannot_name_files_elsewhere(folder, name):
    (folder / WEIGHTS_FILE).unlink()
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(WeightsError, match="not a file of this folder"):
        HfFolder(folder, "model").check()


@pytest.mark.parametrize("name", ["..", "a\0b", "\ud800", "x" * 300])
def test_an_index_that_names_what_no_file_can_be_called_is_refused(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(WeightsError, match="cannot read"):
        HfFolder(folder, "x").check()


def test_pickled_weights_are_refused_by_name(folder):
    (folder / WEIGHTS_FILE).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin only; Octavo reads safetensors"):
        HfFolder(folder, "model").check()


def test_a_folder_without_a_configuration_says_what_it_lacks(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        HfFolder(tmp_path, "model")
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"name the file: .*some\.gguf"):
        HfFolder(tmp_path, "model")


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{", b"[" * 100_000])
def test_an_unreadable_configuration_is_named(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(WeightsError, match=r"config.json"):
        HfFolder(folder, "model")


def test_describing_a_model_reads_no_weights(folder):
    (folder / WEIGHTS_FILE).unlink()
    assert HfFolder(folder, "model").spec.num_layers == 2


def test_end_tokens_come_from_the_generation_config_first(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6, 5]}))
    assert HfFolder(folder, "model").eos_token_ids == (5, 6)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 9}))
    assert HfFolder(folder, "model").eos_token_ids == (9,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 96}))
    with pytest.raises(UnsupportedModelError, match="eos_token_id 96 is not a token"):
        HfFolder(folder, "model")


def test_chat_templates_are_found_where_transformers_looks(folder):
    assert HfFolder(folder, "model").chat_template is None
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    assert HfFolder(folder, "model").chat_template == "old"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert HfFolder(folder, "model").chat_template == {"default": "a", "tool_use": "b"}
    (folder / "chat_template.jinja").write_text("new")
    assert HfFolder(folder, "model").chat_template == "new", "files take the place of what the configuration says"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert HfFolder(folder, "model").chat_template == {"default": "new", "tool_use": "tools"}
