"""Octavo: LLM inference on the CPU, built around its KV cache.

What is public is loaded when it is first used, so that a command that needs no engine starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from octavo import errors

if TYPE_CHECKING:
    from octavo.async_engine import AsyncEngine
    from octavo.config import EngineConfig
    from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.engine.sampling_params import SamplingParams
    from octavo.llm import LLM
    from octavo.text.grammar import StructuredOutputsParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "errors",
]

_HOMES = {
    "LLM": "octavo.llm",
    "AsyncEngine": "octavo.async_engine",
    "CompletionOutput": "octavo.engine.outputs",
    "EngineConfig": "octavo.config",
    "Logprob": "octavo.engine.outputs",
    "RequestOutput": "octavo.engine.outputs",
    "SamplingParams": "octavo.engine.sampling_params",
    "StructuredOutputsParams": "octavo.text.grammar",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
