"""Every architecture Octavo runs."""

from __future__ import annotations

from octavo.model.architecture import Architecture
from octavo.model.architectures import gemma2, gemma3, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3

ARCHITECTURES: tuple[Architecture, ...] = (
    llama.ARCHITECTURE,
    mistral.ARCHITECTURE,
    qwen2.ARCHITECTURE,
    qwen3.ARCHITECTURE,
    gemma2.ARCHITECTURE,
    gemma3.ARCHITECTURE,
    gemma3.TEXT_OF_IMAGES,
    phi3.ARCHITECTURE,
    olmo2.ARCHITECTURE,
    smollm3.ARCHITECTURE,
    granite.ARCHITECTURE,
)
"""In the order of the documentation."""


def architecture_named(name: str) -> Architecture:
    """The architecture of a :class:`ModelSpec` by its ``architecture``."""
    return next(architecture for architecture in ARCHITECTURES if architecture.name == name)
