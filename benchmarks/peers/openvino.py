"""OpenVINO GenAI: its continuous-batching pipeline reads the f16 GGUF file directly and computes in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import TokenEngine
from benchmarks.peers.models import make_gguf
from benchmarks.peers.place import Place
from benchmarks.peers.shapes import MAX_MODEL_LEN, MAX_NUM_SEQS, NUM_KV_TOKENS

NAME = "OpenVINO"
REQUIREMENTS = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")


def set_up(place: Place) -> None:
    """Raises:
    PeerError: pip failed.
    """
    place.install("openvino", REQUIREMENTS)
    make_gguf(place, "f16")


def python(place: Place) -> Path:
    return place.python("openvino")


def environment(place: Place, threads: int) -> Mapping[str, str]:
    return {}


def open_engine(work: Path, threads: int) -> TokenEngine:
    return _OpenVino(Place(work).gguf("f16"), threads)


class _OpenVino(TokenEngine):
    def __init__(self, model: Path, threads: int) -> None:
        import openvino_genai

        self._genai: Any = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = MAX_NUM_SEQS
        # Faster than the default of 256: 1,024 tokens of prefill gained a fifth.
        scheduler.max_num_batched_tokens = MAX_MODEL_LEN
        scheduler.num_kv_blocks = NUM_KV_TOKENS // _BLOCK_SIZE
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": "bf16",
            # One stream, or it would split the threads. The hint for latency lost some percent at 16 sequences; without
            # pinning, and with an f16 KV cache, it was no faster.
            "PERFORMANCE_HINT": "THROUGHPUT",
            "NUM_STREAMS": 1,
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", settings)

    @property
    def version(self) -> str:
        return f"GenAI {metadata.version('openvino-genai')}"

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        import numpy as np
        from openvino import Tensor

        settings = self._genai.GenerationConfig()
        settings.max_new_tokens = num_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        inputs = [Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [settings] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]


_BLOCK_SIZE = 32
"""Tokens; fixed by its CPU plugin."""
