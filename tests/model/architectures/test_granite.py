"""Granite: its four factors, in a configuration and in GGUF metadata."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import config_of, reference
from llama_cpp_gguf import metadata_of

from octavo.errors import UnsupportedModelError
from octavo.model.architecture import GgufExtras
from octavo.model.gguf_metadata import spec_from_gguf
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.spec import ModelSpec

NAME = "GraniteForCausalLM"
FACTORS = {
    "embedding_multiplier": 12,
    "attention_multiplier": 0.015625,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"logits_scaling": 0}, "logits_scaling to 0"),
    ({"logits_scaling": 5e-324}, "logit_scale"),
    ({"residual_multiplier": -0.5}, "residual_multiplier to -0.5"),
    ({"embedding_multiplier": True}, "embedding_multiplier to True"),
    ({"attention_multiplier": "0.1"}, "attention_multiplier to '0.1'"),
    ({"layer_types": ["mamba"] * 8}, "layer_types"),
]


def factors(spec: ModelSpec) -> tuple[float, ...]:
    return spec.embed_scale, spec.attention_scale, spec.residual_scale, spec.logit_scale


def metadata(**changes: Any) -> dict[str, Any]:
    """Those of a file with ``FACTORS``; ``None`` takes a key away."""
    made = metadata_of(reference(config_of(NAME, **FACTORS)))
    made |= {f"granite.{key.replace('__', '.')}": value for key, value in changes.items()}
    return {key: value for key, value in made.items() if value is not None}


def read(metadata: dict[str, Any]) -> ModelSpec:
    return spec_from_gguf(metadata, GgufExtras(tie_word_embeddings=False))


def test_factors_are_those_of_its_configuration() -> None:
    assert factors(spec_from_hf_config(config_of(NAME))) == (1, 1, 1, 1)
    assert factors(spec_from_hf_config(config_of(NAME, **FACTORS))) == (12, 2**-6, 0.22, 1 / 8)


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_octavo_cannot_do_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_from_hf_config(config_of(NAME, **settings))


def test_factors_in_a_gguf_file_are_the_same() -> None:
    assert factors(read(metadata())) == (12, 2**-6, 0.22, 1 / 8)


@pytest.mark.parametrize("absent", [None, 0.0])
def test_a_factor_that_a_gguf_file_leaves_out_is_the_one_of_llama_cpp(absent: float | None) -> None:
    spec = read(metadata(attention__scale=absent, embedding_scale=absent, residual_scale=absent))
    assert factors(spec) == (1, 16**-0.5, 1, 1 / 8)


def test_a_gguf_file_has_to_say_what_divides_its_logits() -> None:
    with pytest.raises(UnsupportedModelError, match=r"does not say granite\.logit_scale"):
        read(metadata(logit_scale=None))


def test_a_gguf_file_that_switches_rotation_off_is_refused() -> None:
    assert read(metadata(rope__scaling__finetuned=True)) == read(metadata())
    with pytest.raises(UnsupportedModelError, match="finetuned to False"):
        read(metadata(rope__scaling__finetuned=False))
