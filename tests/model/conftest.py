"""Small Llamas made at test time: as transformers saves them, and as llama.cpp's converter writes GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp_gguf
import numpy as np
import pytest
import torch
import transformers


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
    """Write a GGUF file of a transformers Llama with the metadata of a test."""

    def write(model: Any, metadata: dict[str, Any], *, path: Path | None = None, **options: Any) -> Path:
        path = path or tmp_path / f"{options.get('storage', 'BF16')}.gguf"
        return llama_cpp_gguf.write_gguf(model, path, metadata, **options)

    return write
