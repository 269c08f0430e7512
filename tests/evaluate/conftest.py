"""A small random model with a tokenizer, large enough in head_dim for every KV format, and a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

CONTEXT = 1024


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: two layers, head_dim 32, random weights that predict something; texts begin with bos."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("small")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["The code of the fox is in the dog"] * 10, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing has been evaluated yet."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
