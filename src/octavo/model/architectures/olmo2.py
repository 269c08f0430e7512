"""OLMo 2: norms after attention and MLP instead of before them, and one over all heads of q and of k."""

from __future__ import annotations

from octavo.model.architecture import GGUF_LLAMA_LAYER, HF_LLAMA_LAYER, Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields
from octavo.model.hf_fields import HfDefaults, attention_biases, spec_from_hf_fields
from octavo.model.spec import ModelSpec

_NAME = "Olmo2ForCausalLM"


def _from_hf(fields: Fields) -> ModelSpec:
    biases = attention_biases(fields)
    return spec_from_hf_fields(fields, _NAME, HfDefaults(norm_eps=1e-5), norms="post", qk_norm="full", **biases)


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    # OLMo 3 calls itself the same and is told apart by its window; its layers rotate in two ways.
    fields.only("attention.sliding_window", 0)
    return spec_from_gguf_fields(fields, extras, _NAME, norms="post", qk_norm="full")


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="olmo2",
    gguf_name="olmo2",
    example="OLMo 2 1B to 32B",
    features="norms after attention and MLP; q/k norm over all heads; attention biases",
    refuses=("a sliding window (OLMo 3)",),
    from_hf=_from_hf,
    hf_layer={
        **{name: slots for name, slots in HF_LLAMA_LAYER.items() if "layernorm" not in name},
        "post_attention_layernorm.weight": ("attn_post_norm",),
        "post_feedforward_layernorm.weight": ("mlp_post_norm",),
    },
    from_gguf=_from_gguf,
    gguf_layer={
        **{name: slots for name, slots in GGUF_LLAMA_LAYER.items() if slots not in (("attn_norm",), ("mlp_norm",))},
        "post_attention_norm.weight": ("attn_post_norm",),
        "post_ffw_norm.weight": ("mlp_post_norm",),
    },
)
