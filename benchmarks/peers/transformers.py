"""transformers on torch for the CPU: the model's own forward pass in a greedy loop, with a DynamicCache."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import TokenEngine
from benchmarks.peers.models import make_hf_folder
from benchmarks.peers.place import Place

NAME = "transformers"
REQUIREMENTS = ("transformers==5.24.0", "torch==2.13.0", "accelerate", "gguf")


def set_up(place: Place) -> None:
    """Raises:
    PeerError: pip failed.
    """
    place.install("transformers", REQUIREMENTS)
    make_hf_folder(place, "transformers")


def python(place: Place) -> Path:
    return place.python("transformers")


def environment(place: Place, threads: int) -> Mapping[str, str]:
    return {"HF_HUB_OFFLINE": "1"}


def open_engine(work: Path, threads: int) -> TokenEngine:
    return _Transformers(Place(work).hf_folder, threads)


class _Transformers(TokenEngine):
    """It has no prefix cache of its own. What its users do by hand is done here: the last prompts' cache is kept."""

    def __init__(self, model: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._torch: Any = torch
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        self._prompts: list[list[int]] = []
        self._cache: Any = None

    @property
    def version(self) -> str:
        return metadata.version("transformers")

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        from transformers import DynamicCache

        with self._torch.inference_mode():
            cached = self._num_cached_tokens(prompts)
            if cached:
                self._cache.crop(cached - self._cache.get_seq_length())  # a negative number: tokens to drop
            else:
                self._cache = DynamicCache()
            self._prompts = prompts
            inputs = self._torch.tensor([prompt[cached:] for prompt in prompts])
            chosen = []
            for _ in range(num_tokens):
                logits = self._model(inputs, cache=self._cache, logits_to_keep=1).logits
                inputs = logits.argmax(-1)
                chosen.append(inputs)
            return self._torch.cat(chosen, 1).tolist()

    def _num_cached_tokens(self, prompts: list[list[int]]) -> int:
        """Of each prompt, that the cache holds; at least one must be computed."""
        if len(prompts) != len(self._prompts):
            return 0
        length = len(self._prompts[0])
        if any(new[:length] != old for new, old in zip(prompts, self._prompts, strict=True)):
            return 0
        return min(length, len(prompts[0]) - 1)
