"""docs/supported-models.md is what the code says, and what it calls refused is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from documents import ROOT, read
from hf_configs import config_of
from llama_cpp_gguf import metadata_of, write_gguf
from random_models import MODELS

from octavo.errors import ModelError
from octavo.model.architecture import GgufExtras
from octavo.model.architectures.registry import ARCHITECTURES
from octavo.model.gguf_file import GgufFile
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.hf_folder import HfFolder
from octavo.text.folder_tokenizer import tokenizer_from_folder
from octavo.text.gguf_tokenizer import tokenizer_from_gguf

described = importlib.util.spec_from_file_location("supported_models", ROOT / "docs/supported_models.py")
supported_models = importlib.util.module_from_spec(described)
described.loader.exec_module(supported_models)


def test_the_page_is_what_the_code_says() -> None:
    assert read("docs/supported-models.md") == supported_models.page(), "run `make docs`"


@pytest.mark.parametrize("name", [name for _, names in supported_models.STORAGE for name in names])
def test_a_gguf_file_is_read_whatever_it_is_stored_as(name: str, tmp_path: Path) -> None:
    storage = gguf.GGMLQuantizationType[name]
    block, block_bytes = gguf.GGML_QUANT_SIZES[storage]
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_tensor("t", np.zeros((3, 2 * block_bytes), np.uint8), raw_dtype=storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert GgufFile(tmp_path / "m.gguf").read("t").shape == (3, 2 * block)


BY_ARCHITECTURE: dict[str, tuple[dict[str, Any], str]] = {
    "biases of the MLP": ({"mlp_bias": True}, "mlp_bias"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "mixture of experts": ({"num_local_experts": 8}, "num_local_experts"),
    "bidirectional attention": ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "soft caps of scores": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "images": ({"img_processor": {"name": "clip_vision_model"}}, "img_processor"),
    "speech": ({"audio_processor": {"name": "cascades"}}, "audio_processor"),
    "a sliding window (OLMo 3)": ({"sliding_window": 4096}, "sliding_window"),
    "state-space layers": ({"layer_types": ["mamba"] * 8}, "layer_types"),
}


@pytest.mark.parametrize(
    ("name", "refused"),
    [(each.name, refused) for each in ARCHITECTURES for refused in each.refuses],
)
def test_what_an_architecture_is_said_to_refuse_is_refused(name: str, refused: str) -> None:
    settings, message = BY_ARCHITECTURE[refused]
    config = config_of(name, **settings)
    if name == "Gemma3ForConditionalGeneration":
        config = {"architectures": [name], "text_config": config | {"architectures": None}}
    with pytest.raises(ModelError, match=message):
        spec_from_hf_config(config)


def configured(**settings: Any) -> Callable[[Path], object]:
    return lambda folder: spec_from_hf_config(config_of("LlamaForCausalLM", **settings))


def in_gguf(**settings: Any) -> Callable[[Path], object]:
    metadata = metadata_of(MODELS["gqa"]().config)
    return lambda folder: spec_from_gguf(metadata | settings, GgufExtras(False))


def pickled(folder: Path) -> None:
    MODELS["mha"]().save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    HfFolder(folder, "m").check()


def sentencepiece_only(folder: Path) -> None:
    (folder / "tokenizer.model").touch()
    tokenizer_from_folder(folder)


def unused_tensor(folder: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    GgufSource(write_gguf(MODELS["mha"](), folder / "m.gguf", extra=extra), "m").check()


def scaled(**scaling: Any) -> Callable[[Path], object]:
    return configured(rope_scaling=scaling)


BY_ANY: dict[str, tuple[Callable[[Path], object], str]] = {
    "quantised safetensors (GPTQ, AWQ, FP8, bitsandbytes)": (
        configured(quantization_config={"quant_method": "fp8"}),
        "quantization_config",
    ),
    "mixture of experts": (configured(num_experts=8), "num_experts to 8"),
    "dynamic NTK: rotary frequencies that follow the current length": (scaled(type="dynamic", factor=2.0), "'dynamic'"),
    "longrope, except for Phi-3": (scaled(type="longrope", long_factor=[1.0] * 8), "'longrope'"),
    "rotary sections for images and video (M-RoPE)": (scaled(type="default", mrope_section=[4, 2, 2]), "mrope_section"),
    "rotary tables of `rope_parameters` and `rope_scaling` that disagree": (
        configured(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default"}),
        "they disagree",
    ),
    "encoders, and attention that is not causal": (configured(is_causal=False), "is_causal"),
    "code in the model's folder (`auto_map`), except Phi-3's own": (
        configured(auto_map={"AutoModelForCausalLM": "modeling_own.Own"}),
        "auto_map",
    ),
    "an activation other than SiLU and GELU by tanh": (configured(hidden_act="relu"), "hidden_act to 'relu'"),
    "head dimensions that 16 does not divide": (configured(head_dim=24), "multiple of 16"),
    "layers of different sizes": (in_gguf(**{"llama.attention.head_count_kv": [1, 2]}), "one value for all 2 layers"),
    "a configuration key that Octavo does not know and that switches something on": (
        configured(unheard_of=1),
        "unheard_of to 1",
    ),
    "a tensor that the architecture does not use, except Gemma 3's for images": (unused_tensor, "attn_sinks"),
    "pickled weights (`pytorch_model.bin`)": (pickled, "pytorch_model.bin only"),
    "a sentencepiece `tokenizer.model` without `tokenizer.json`": (sentencepiece_only, "tokenizer.model"),
    "GGUF files that hold an adapter": (in_gguf(**{"general.type": "adapter"}), "adapter"),
    "GGUF models split into several files": (in_gguf(**{"split.count": 2}), "split.count to 2"),
    "GGUF vocabularies other than byte-level BPE (`gpt2`) and sentencepiece (`llama`)": (
        lambda folder: tokenizer_from_gguf({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]}),
        "'bert'",
    ),
}


def test_everything_that_is_said_to_be_refused_is_tried() -> None:
    assert set(BY_ANY) == {what for what, _ in supported_models.REFUSED}


@pytest.mark.parametrize("what", BY_ANY)
def test_what_every_architecture_is_said_to_refuse_is_refused(what: str, tmp_path: Path) -> None:
    attempt, message = BY_ANY[what]
    with pytest.raises(ModelError, match=message):
        attempt(tmp_path)
