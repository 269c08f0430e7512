"""One model as a Hugging Face folder and as llama.cpp's converter writes it: the same spec, the same bits."""

from __future__ import annotations

from pathlib import Path

import llama_cpp_gguf
import numpy as np
import pytest
from random_models import FOR_GGUF, MODELS

from octavo.model.base import ModelSource
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_folder import HfFolder
from octavo.model.slots import TensorKey

SAME = [
    "nine heads to three",
    "mqa, odd sizes, tied",
    "attention biases",
    "linear rope",
    "yarn rope",
    "qwen 2",
    "qwen 3",
    "qwen 3 with biases",
    "phi 3",
    "phi 3, longrope, long",
    "olmo 2",
    "smollm 3",
    "smollm 3 with biases",
    "granite",
    "granite with biases",
]
"""Those that a GGUF file can describe: it has no key for the windows of Mistral, Qwen and SmolLM3."""


def read(source: ModelSource) -> dict[TensorKey, np.ndarray]:
    return {(slot, layer): bits for slot, layer, bits in source.tensors()}


@pytest.mark.parametrize("name", [*SAME, *FOR_GGUF])
def test_a_gguf_file_and_a_folder_of_one_model_hold_the_same(name: str, tmp_path: Path) -> None:
    model = (MODELS | FOR_GGUF)[name]()
    model.save_pretrained(tmp_path / "folder")
    source = GgufSource(llama_cpp_gguf.write_gguf(model, tmp_path / "m.gguf"), "m")
    folder = HfFolder(tmp_path / "folder", "folder")
    assert source.spec == folder.spec
    ours, theirs = read(source), read(folder)
    assert ours.keys() == theirs.keys()
    for key in theirs:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=str(key))
