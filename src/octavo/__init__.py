"""Octavo: LLM inference on the CPU, built around its KV cache."""

from octavo.async_engine import AsyncEngine
from octavo.config import EngineConfig
from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.engine.sampling_params import SamplingParams
from octavo.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]
