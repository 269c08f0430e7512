import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from octavo.errors import ModelError, UnsupportedModelError, WeightsError
from octavo.model.architectures import llama
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_folder import HfFolder


def read(source) -> dict:
    return {(slot, layer): bits for slot, layer, bits in source.tensors()}


def test_the_embedded_model_dequantises_as_in_transformers(smollm2_gguf):
    # Only the names of this model's tensors are used: its layers and that it is tied.
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=30, tie_word_embeddings=True))
    reference = load_gguf_checkpoint(str(smollm2_gguf), return_tensors=True, model_to_load=model)["tensors"]
    tensors = read(GgufSource(smollm2_gguf, "smollm2"))
    assert len(reference) == len(tensors) == 272
    for name, weight in reference.items():
        bits = weight.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(tensors[llama.ARCHITECTURE.hf_tensors.keys(name)[0]], bits, err_msg=name)


def test_the_embedded_model_is_described_whole(smollm2_gguf):
    source = GgufSource(smollm2_gguf, "smollm2")
    spec = source.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.norm_eps, spec.ropes[0].theta, spec.tie_word_embeddings) == (1e-5, 100000.0, True)
    assert source.eos_token_ids == (2,)
    assert "<|im_start|>" in source.chat_template
    assert len(source.tokenizer_source["tokenizer.ggml.tokens"]) == 49152
    assert source.needs_dequantising


def test_metadata_is_what_gguf_itself_reads(random_llama, write_gguf, config, metadata):
    import gguf

    extra = {"a.list": [1, 2, 3], "a.text": "grüße", "a.flag": True, "tokenizer.ggml.tokens": ["x", "é", ""]}
    path = write_gguf(random_llama(config), metadata | extra)
    reader = gguf.GGUFReader(path)
    mine = GgufSource(path, "m").tokenizer_source
    theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert mine == theirs


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_and_a_folder_of_one_model_hold_the_same(
    random_llama, write_gguf, config, metadata, tmp_path, storage, tied
):
    model = random_llama(config | {"tie_word_embeddings": tied})
    model.save_pretrained(tmp_path / "folder")
    source = GgufSource(write_gguf(model, metadata, storage=storage), "gguf")
    folder = HfFolder(tmp_path / "folder", "folder")
    assert source.spec == folder.spec
    assert not source.needs_dequantising
    ours, theirs = read(source), read(folder)
    assert ours.keys() == theirs.keys()
    for key in theirs:
        np.testing.assert_array_equal(ours[key], theirs[key])


@pytest.mark.parametrize("storage", ["Q4_0", "Q5_1", "Q8_0"])
def test_quantised_storage_comes_back_near_what_was_written(random_llama, write_gguf, config, metadata, storage):
    model = random_llama(config)
    tensors = read(GgufSource(write_gguf(model, metadata, storage=storage), "gguf"))
    weight = model.model.layers[0].self_attn.k_proj.weight.detach().float().numpy()
    values = (tensors["k", 0].astype(np.uint32) << 16).view(np.float32)
    assert np.corrcoef(values.ravel(), weight.ravel())[0, 1] > 0.99


def test_llama3_scaling_in_a_gguf_file_gives_the_frequencies_of_the_configuration(
    random_llama, write_gguf, config, metadata, tmp_path
):
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = random_llama(config | {"rope_scaling": {"rope_type": "llama3", **scaling}})
    model.save_pretrained(tmp_path / "folder")
    wanted = HfFolder(tmp_path / "folder", "folder").spec.ropes[0].inv_freq()
    # The factors as llama.cpp's converter works them out: frequency without scaling over frequency with it.
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    factors = (plain / wanted.astype(np.float64)).astype(np.float32)
    path = write_gguf(model, metadata, extra={"rope_freqs.weight": factors})
    np.testing.assert_allclose(GgufSource(path, "m").spec.ropes[0].inv_freq(), wanted, rtol=3e-7)


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"blk.0.attn_q.bias": np.ones(64, np.float32)}, WeightsError, "lacks k_bias of layer 0, v_bias of layer 0"),
        ({"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, WeightsError, "attn_q_norm"),
        ({"blk.7.attn_q.weight": np.ones((64, 64), np.float32)}, WeightsError, "blk.7.attn_q.weight"),
        ({"rope_freqs.weight": np.ones(8, np.float16)}, UnsupportedModelError, "rope_freqs.weight"),
        ({"output.weight": np.ones((95, 64), np.float32)}, WeightsError, r"\[95, 64\].*\[96, 64\]"),
    ],
)
def test_tensors_that_do_not_belong_are_named(random_llama, write_gguf, config, metadata, extra, error, message):
    path = write_gguf(random_llama(config), metadata, extra=extra)
    with pytest.raises(error, match=message):
        GgufSource(path, "m").check()


def test_a_file_cut_anywhere_is_refused_with_its_name(random_llama, write_gguf, config, metadata, tmp_path):
    content = write_gguf(random_llama(config), metadata | {"tokenizer.ggml.tokens": ["x"] * 20}).read_bytes()
    cut = tmp_path / "cut.gguf"
    for keep in [*range(0, 1500, 13), len(content) // 2, len(content) - 64]:
        cut.write_bytes(content[:keep])
        with pytest.raises(WeightsError, match=r"cut\.gguf"):
            GgufSource(cut, "m").check()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(damage=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_header_is_a_typed_error_or_harmless(random_llama, write_gguf, config, metadata, tmp_path, damage):
    original = tmp_path / "whole.gguf"
    if not original.exists():
        write_gguf(random_llama(config), metadata | {"tokenizer.ggml.tokens": ["x"] * 20}, path=original)
    content = bytearray(original.read_bytes())
    for offset, value in damage:
        content[offset] = value
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    try:
        GgufSource(damaged, "m").check()
    except ModelError as error:
        assert str(error)


def test_end_tokens_include_the_end_of_a_turn(random_llama, write_gguf, config, metadata):
    tokens = {
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 3,
    }
    assert GgufSource(write_gguf(random_llama(config), metadata | tokens), "m").eos_token_ids == (3, 7)
    with pytest.raises(UnsupportedModelError, match="eos_token_id 96 is not a token"):
        GgufSource(write_gguf(random_llama(config), metadata | {"tokenizer.ggml.eos_token_id": 96}), "m")


def test_named_chat_templates_are_all_kept(random_llama, write_gguf, config, metadata):
    named = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    source = GgufSource(write_gguf(random_llama(config), metadata | named), "m")
    assert source.chat_template == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize("offset", [2**40, 2**63 - 1, 2**63, 2**64 - 32])
def test_rotary_factors_that_lie_where_no_file_reaches_are_refused(random_llama, write_gguf, config, metadata, offset):
    """They are read before everything else is checked."""
    path = write_gguf(random_llama(config), metadata, extra={"rope_freqs.weight": np.ones(8, np.float32)})
    content, name = bytearray(path.read_bytes()), b"rope_freqs.weight"
    at = content.index(name) + len(name) + 4 + 8 + 4  # after the number of dimensions, the one there is, and the type
    content[at : at + 8] = offset.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="cut short"):
        GgufSource(path, "x")
