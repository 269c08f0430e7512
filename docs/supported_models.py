"""Writes supported-models.md from the code. Run by `make docs`."""

from __future__ import annotations

from pathlib import Path

from octavo.model.architecture import Architecture
from octavo.model.architectures.registry import ARCHITECTURES

PAGE = Path(__file__).with_name("supported-models.md")

STORAGE = (
    ("plain", ("F32", "F16", "BF16")),
    ("legacy blocks", ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")),
    ("K blocks", ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")),
    ("I blocks", ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")),
    ("ternary", ("TQ1_0", "TQ2_0")),
    ("microscaled", ("MXFP4",)),
)
"""GGUF storage types that are read, in groups."""

REFUSED = (
    ("quantised safetensors (GPTQ, AWQ, FP8, bitsandbytes)", "a GGUF file of the model, or the weights it was made of"),
    ("mixture of experts", "-"),
    ("dynamic NTK: rotary frequencies that follow the current length", "`linear`, `llama3` or `yarn` scaling"),
    ("longrope, except for Phi-3", "-"),
    ("rotary sections for images and video (M-RoPE)", "-"),
    ("rotary tables of `rope_parameters` and `rope_scaling` that disagree", "one of them"),
    ("encoders, and attention that is not causal", "-"),
    ("code in the model's folder (`auto_map`), except Phi-3's own", "-"),
    ("an activation other than SiLU and GELU by tanh", "-"),
    ("head dimensions that 16 does not divide", "-"),
    ("layers of different sizes", "-"),
    ("a configuration key that Octavo does not know and that switches something on", "-"),
    ("a tensor that the architecture does not use, except Gemma 3's for images", "-"),
    ("pickled weights (`pytorch_model.bin`)", "`save_pretrained`, which writes safetensors"),
    (
        "a sentencepiece `tokenizer.model` without `tokenizer.json`",
        "`AutoTokenizer`'s `save_pretrained`, or a GGUF file",
    ),
    ("GGUF files that hold an adapter", "the merged model"),
    ("GGUF models split into several files", "`llama-gguf-split --merge`"),
    (
        "GGUF vocabularies other than byte-level BPE (`gpt2`) and sentencepiece (`llama`)",
        "a folder with `tokenizer.json`",
    ),
)
"""What no model may ask for, and what to take instead."""

INTRODUCTION = """\
# Supported models

This page is written by `make docs` from the code. Octavo runs dense decoders of these architectures, from a folder as
transformers saves it, from the hub, or from a GGUF file as llama.cpp's converter writes it. What a configuration asks
for is done or refused by name, never ignored: a model that loads computes what its authors meant.
"""

COLUMNS = ("Architecture", "`model_type`", "In GGUF", "Published examples", "What it has", "Refused")

AFTER_ARCHITECTURES = """\
Logits of each are compared with those of transformers on the same weights:
`tests/reference/test_against_transformers.py::test_random_models_are_closer_to_float32_than_transformers_in_bfloat16`.
A GGUF file and a folder of one model hold the same bits:
`tests/model/architectures/test_gguf_and_folder.py::test_a_gguf_file_and_a_folder_of_one_model_hold_the_same`.

**Long contexts.** Rotary scaling may be `linear`, `llama3` or `yarn`, in every family. In GGUF files, YaRN's other
settings must be the usual ones, which are all that llama.cpp follows. Phi-3's `longrope` has one set of factors for
contexts up to the original length and one beyond; transformers changes over as a text grows, Octavo decides once, by
`max_model_len`: keys that were rotated differently cannot share a cache. Without `max_model_len` it is the model's
whole context, so the long factors.

**Windows** are respected wherever a file states one. For Phi-3 that is more than llama.cpp does. Its converter writes
none for Mistral, Qwen and SmolLM3: a GGUF file of one that was trained with a window sees everything.
"""

FILES = """\
**Folders** have `config.json`, `tokenizer.json`, and safetensors in one file or in shards, stored as BF16, F16 or F32.
**GGUF files** have version 2 or 3, tokenizer and chat template included. Weights run as bfloat16: F32 and F16 are
rounded, and quantised blocks dequantised, once, at load.

What the installed `gguf` package can dequantise is read, among it:
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRODUCTION,
            "## Architectures",
            "",
            *_table(COLUMNS, [_row(architecture) for architecture in ARCHITECTURES]),
            "",
            AFTER_ARCHITECTURES,
            "## Files",
            "",
            FILES,
            *_table(("Storage", "Types"), [(group, ", ".join(names)) for group, names in STORAGE]),
            "",
            "## Refused for all of them",
            "",
            *_table(("What", "Instead"), REFUSED),
            "",
        ]
    )


def _row(architecture: Architecture) -> tuple[str, ...]:
    return (
        architecture.name,
        f"`{architecture.model_type}`",
        f"`{architecture.gguf_name}`",
        architecture.example,
        architecture.features,
        ", ".join(architecture.refuses) or "-",
    )


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]] | tuple[tuple[str, ...], ...]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
