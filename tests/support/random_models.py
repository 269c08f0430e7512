"""Small random models as transformers makes them, of odd sizes: what Octavo's logits are compared with theirs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB_SIZE = 331
Maker = Callable[[], Any]


def random_model(config: PretrainedConfig) -> Any:
    """A model of that configuration in bfloat16, the same each time.

    transformers initialises the weights of norms and the biases to what does nothing; here they do something, so
    that one which is left out or applied twice shows.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.to(torch.bfloat16)


def _model(kind: type[PretrainedConfig], **settings: Any) -> Maker:
    common = {
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.15,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return lambda: random_model(kind(**{**common, **settings}))


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_GQA = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "hidden_size": 90, "intermediate_size": 130}
_GEMMA2 = {
    "num_hidden_layers": 4,
    "sliding_window": 40,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 2.0,  # scores and logits spread by about as much
    "final_logit_softcapping": 2.0,
}
_GEMMA3 = {
    "num_hidden_layers": 6,
    "sliding_window": 40,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 100_000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
    },
}
_QWEN = {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}
_GRANITE = {
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_size": 96,
    "intermediate_size": 130,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}
_PHI3 = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 192, "intermediate_size": 130}
_FACTORS = {"short_factor": [1 + i / 12 for i in range(12)], "long_factor": [1 + i / 2 for i in range(12)]}


def _longrope(original: int) -> dict[str, Any]:
    """Settings of a Phi-3 whose context was ``original`` and is 1024."""
    return {
        "original_max_position_embeddings": original,
        "partial_rotary_factor": 0.75,
        "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": original, **_FACTORS},
    }


MODELS: dict[str, Maker] = {
    "mha": _model(LlamaConfig, num_attention_heads=4, num_key_value_heads=4, hidden_size=64, intermediate_size=96),
    "gqa": _model(LlamaConfig, **_GQA),
    "mqa, odd sizes, tied": _model(
        LlamaConfig,
        num_attention_heads=7,
        num_key_value_heads=1,
        head_dim=48,
        hidden_size=126,
        intermediate_size=52,
        tie_word_embeddings=True,
    ),
    "nine heads to three": _model(
        LlamaConfig, num_attention_heads=9, num_key_value_heads=3, head_dim=16, hidden_size=72, intermediate_size=66
    ),
    "head_dim 128": _model(
        LlamaConfig, num_attention_heads=2, num_key_value_heads=1, head_dim=128, hidden_size=64, intermediate_size=64
    ),
    "attention biases": _model(LlamaConfig, **_GQA, attention_bias=True),
    "llama3 rope": _model(LlamaConfig, **_GQA, rope_parameters=_LLAMA3),
    "yarn rope": _model(LlamaConfig, **_GQA, rope_parameters=_YARN),
    "linear rope": _model(
        LlamaConfig, **_GQA, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    ),
    "mistral": _model(MistralConfig, **_GQA, sliding_window=40),
    "qwen 2": _model(Qwen2Config, **_GQA),
    "qwen 2 with windows": _model(Qwen2Config, **_GQA, **_QWEN),
    "qwen 3": _model(Qwen3Config, **_GQA, tie_word_embeddings=True),
    "qwen 3 with biases": _model(Qwen3Config, **_GQA, attention_bias=True),
    "qwen 3 with biases and windows": _model(Qwen3Config, **_GQA, **_QWEN, attention_bias=True),
    "smollm 3": _model(SmolLM3Config, **_GQA, num_hidden_layers=5),
    "smollm 3 without rotation": _model(SmolLM3Config, **_GQA, no_rope_layers=[0, 0]),
    "smollm 3 with biases": _model(SmolLM3Config, **_GQA, num_hidden_layers=4, attention_bias=True),
    "smollm 3 with biases and windows": _model(
        SmolLM3Config,
        **_GQA,
        num_hidden_layers=3,
        no_rope_layers=[1, 0, 1],
        use_sliding_window=True,
        sliding_window=40,
        attention_bias=True,
    ),
    "granite": _model(GraniteConfig, **_GRANITE),
    "granite with biases": _model(GraniteConfig, **_GRANITE, attention_bias=True),
    "gemma 2": _model(Gemma2Config, **_GQA, **_GEMMA2),
    "gemma 3": _model(Gemma3TextConfig, **_GQA, **_GEMMA3),
    "phi 3": _model(Phi3Config, **_PHI3, sliding_window=40),
    "phi 3, longrope, short": _model(Phi3Config, **_PHI3, **_longrope(512)),
    "phi 3, longrope, long": _model(Phi3Config, **_PHI3, **_longrope(100)),
    "olmo 2": _model(Olmo2Config, **_GQA, attention_bias=True),
}
"""By name. Contexts are 300 tokens: a window has to be smaller to be seen, and longrope has two sides of that."""

FOR_GGUF: dict[str, Maker] = {
    "gemma 2, scores by head_dim": _model(Gemma2Config, **_GQA, **{**_GEMMA2, "query_pre_attn_scalar": 32}),
    "gemma 3, every sixth layer full": _model(
        Gemma3TextConfig,
        **_GQA,
        **{**_GEMMA3, "query_pre_attn_scalar": 32, "sliding_window_pattern": 6, "num_hidden_layers": 7},
    ),
}
"""Like those above, as far as a GGUF file can say it: it has no key for what is meant here."""
