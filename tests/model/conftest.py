"""Small models made at test time: as transformers saves them, and as llama.cpp's converter writes GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's own cache."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def config() -> dict[str, Any]:
    """A minimal config.json of a small Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }


@pytest.fixture
def metadata() -> dict[str, Any]:
    """The GGUF metadata of the same model."""
    return {
        "general.architecture": "llama",
        "llama.vocab_size": 96,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.block_count": 2,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 256,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 16,
    }


@pytest.fixture
def random_llama():
    """Make a transformers Llama with random weights that bfloat16 holds exactly."""

    def make(config: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> transformers.LlamaForCausalLM:
        torch.manual_seed(0)
        settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        return model.to(torch.bfloat16).to(dtype)

    return make


@pytest.fixture
def write_gguf(tmp_path):
    """Write a GGUF file of a transformers Llama, in the row order llama.cpp's converter gives q and k."""

    def write(
        model: transformers.LlamaForCausalLM,
        metadata: dict[str, Any],
        *,
        storage: str = "BF16",
        extra: dict[str, np.ndarray] | None = None,
        path: Path | None = None,
    ) -> Path:
        path = path or tmp_path / f"{storage}.gguf"
        writer = gguf.GGUFWriter(str(path), metadata["general.architecture"])
        for key, value in metadata.items():
            if key != "general.architecture":
                _add(writer, key, value)
        heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
        tied = model.config.tie_word_embeddings
        for name, weight in model.state_dict().items():
            if name == "lm_head.weight" and tied:
                continue
            name, array = _gguf_name(name), weight.float().numpy()
            if name.split(".")[-2] in heads:
                count, (rows, columns) = heads[name.split(".")[-2]], array.shape
                halves = array.reshape(count, 2, rows // count // 2, columns)
                array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
            kind = gguf.GGMLQuantizationType[storage if array.ndim > 1 else "F32"]
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        for name, array in (extra or {}).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"
