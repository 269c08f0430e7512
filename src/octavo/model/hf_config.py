"""A Hugging Face ``config.json`` -> :class:`ModelSpec`. Octavo refuses what it cannot do by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import Architecture
from octavo.model.architectures.registry import ARCHITECTURES
from octavo.model.fields import Fields
from octavo.model.hf_fields import HARMLESS
from octavo.model.spec import ModelSpec


def spec_from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """Describe the model of a Hugging Face configuration.

    Every key is used, known to be harmless, or refused unless its value switches nothing on. Defaults for
    missing keys are those of transformers' configuration classes.

    Raises:
        UnsupportedModelError: the configuration asks for something Octavo does not do; the message names it.
    """
    fields = Fields(config, "config.json")
    architecture = _architecture(fields)
    fields.only("is_causal", True)
    spec = architecture.from_hf(fields)
    fields.refuse_rest(HARMLESS)
    return spec


def _architecture(fields: Fields) -> Architecture:
    names, model_type = fields.get("architectures"), fields.get("model_type")
    by_type = {architecture.model_type: architecture for architecture in ARCHITECTURES}
    by_name = {architecture.name: architecture for architecture in ARCHITECTURES}
    supported = ", ".join(by_name)
    if not names:
        found = by_type.get(model_type) if isinstance(model_type, str) else None
        names = [found.name if found else model_type]
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in by_name:
        raise UnsupportedModelError(f"architecture {name!r} is not supported; Octavo runs {supported}")
    if model_type is not None and model_type != by_name[name].model_type:
        raise UnsupportedModelError(
            f"config.json says architecture {name} but model_type {model_type!r}; Octavo runs {supported}"
        )
    return by_name[name]
