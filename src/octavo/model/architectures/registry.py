"""Every architecture Octavo runs."""

from __future__ import annotations

from octavo.model.architecture import Architecture
from octavo.model.architectures import llama, mistral, qwen2

ARCHITECTURES: tuple[Architecture, ...] = (llama.ARCHITECTURE, mistral.ARCHITECTURE, qwen2.ARCHITECTURE)
"""In the order of the documentation."""


def architecture_named(name: str) -> Architecture:
    """The architecture of a :class:`ModelSpec` by its ``architecture``."""
    return next(architecture for architecture in ARCHITECTURES if architecture.name == name)
