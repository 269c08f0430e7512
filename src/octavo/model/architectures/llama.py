"""Llama 2 and 3, SmolLM2, and everything else that calls itself a Llama."""

from __future__ import annotations

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, attention_biases, spec_from_hf_fields
from octavo.model.spec import ModelSpec

_NAME = "LlamaForCausalLM"


def _from_hf(fields: Fields) -> ModelSpec:
    fields.only("pretraining_tp", 1)
    return spec_from_hf_fields(fields, _NAME, HfDefaults(), **attention_biases(fields))


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    return spec_from_gguf_fields(fields, extras, _NAME)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="llama",
    gguf_name="llama",
    example="Llama 3.2 1B, SmolLM2, TinyLlama",
    features="grouped-query attention; rotary scaling linear, llama3 and YaRN; attention biases",
    refuses=("biases of the MLP", "partial rotation"),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    gguf_pairs_rows=True,
)
