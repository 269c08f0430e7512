"""Writes a GGUF model as a bf16 Hugging Face folder; run where torch, transformers and gguf are installed.

python -m benchmarks.peers.convert GGUF FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A plain model with the same values: the one from the file would be saved as a quantised one.
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantised)(config).to(torch.bfloat16)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
