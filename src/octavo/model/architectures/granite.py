"""Granite, the dense models: Llama with a factor on embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from octavo.model.architecture import Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import factor_or, head_dim_of, spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, attention_biases, spec_from_hf_fields
from octavo.model.spec import ModelSpec

_NAME = "GraniteForCausalLM"


def _from_hf(fields: Fields) -> ModelSpec:
    return spec_from_hf_fields(
        fields,
        _NAME,
        HfDefaults(),
        embed_scale=fields.number("embedding_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0),
        **attention_biases(fields),
    )


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    # It is a switch here, and harmless in every other architecture: llama.cpp does not rotate if it is off.
    fields.only("rope.scaling.finetuned", True)
    heads = fields.integer("attention.head_count")
    return spec_from_gguf_fields(
        fields,
        extras,
        _NAME,
        embed_scale=factor_or(fields, "embedding_scale", 1.0),
        attention_scale=factor_or(fields, "attention.scale", head_dim_of(fields, heads) ** -0.5),
        residual_scale=factor_or(fields, "residual_scale", 1.0),
        logit_scale=1 / fields.number("logit_scale"),  # what llama.cpp calls so divides the logits
    )


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="granite",
    gguf_name="granite",
    example="Granite 3.3 2B and 8B, Granite 3.0 to 4.0 dense",
    features="factors on embeddings, scores, residuals and logits; attention biases",
    refuses=("biases of the MLP", "mixture of experts", "state-space layers"),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    gguf_pairs_rows=True,
)
