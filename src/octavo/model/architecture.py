"""Architecture: what one kind of model is called in files, and how its configuration becomes a ModelSpec."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo.model.fields import Fields
from octavo.model.slots import Slots, TensorNames
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

Layers = Callable[[Fields, int, RopeSpec], tuple[LayerSpec, ...]]
"""(configuration, number of layers, rotary embedding) -> the layers."""

HF_LLAMA_LAYER: Mapping[str, Slots] = {
    "input_layernorm.weight": ("attn_norm",),
    "self_attn.q_proj.weight": ("q",),
    "self_attn.k_proj.weight": ("k",),
    "self_attn.v_proj.weight": ("v",),
    "self_attn.o_proj.weight": ("o",),
    "self_attn.q_proj.bias": ("q_bias",),
    "self_attn.k_proj.bias": ("k_bias",),
    "self_attn.v_proj.bias": ("v_bias",),
    "self_attn.o_proj.bias": ("o_bias",),
    "self_attn.q_norm.weight": ("q_norm",),
    "self_attn.k_norm.weight": ("k_norm",),
    "post_attention_layernorm.weight": ("mlp_norm",),
    "mlp.gate_proj.weight": ("gate",),
    "mlp.up_proj.weight": ("up",),
    "mlp.down_proj.weight": ("down",),
}
"""How transformers names the tensors of a layer in Llama and everything made like it."""

GGUF_LLAMA_LAYER: Mapping[str, Slots] = {
    "attn_norm.weight": ("attn_norm",),
    "attn_q.weight": ("q",),
    "attn_k.weight": ("k",),
    "attn_v.weight": ("v",),
    "attn_output.weight": ("o",),
    "attn_q.bias": ("q_bias",),
    "attn_k.bias": ("k_bias",),
    "attn_v.bias": ("v_bias",),
    "attn_output.bias": ("o_bias",),
    "attn_q_norm.weight": ("q_norm",),
    "attn_k_norm.weight": ("k_norm",),
    "ffn_norm.weight": ("mlp_norm",),
    "ffn_gate.weight": ("gate",),
    "ffn_up.weight": ("up",),
    "ffn_down.weight": ("down",),
}
"""How a GGUF file names them."""


@dataclass(frozen=True, slots=True)
class GgufExtras:
    """What a GGUF file says outside the keys of its architecture.

    ``tie_word_embeddings``: it has no ``output.weight``. ``freq_factors``: values of ``rope_freqs.weight``,
    ``rope_factors_short.weight`` and ``rope_factors_long.weight``, those that it has, by the tensor's name without
    ``.weight``. ``num_tokens``: how many the tokenizer has, if there is one. ``qkv_bias`` and ``o_bias``: its first
    layer has such tensors.
    """

    tie_word_embeddings: bool
    freq_factors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    num_tokens: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """One kind of model.

    Attributes:
        name: its class in transformers.
        model_type: what ``config.json`` calls it.
        gguf_name: ``general.architecture`` of its GGUF files.
        example: a published model of this kind.
        features: what sets it apart from Llama, for the documentation.
        refuses: settings that exist for it and that Octavo refuses, for the documentation.
        from_hf: ``config.json`` -> spec. Keys it asks for count as understood; the rest are refused.
        hf_layer: tensors of a layer in a Hugging Face folder; one may hold several slots, one after another.
        hf_prefix: what all its tensors' names begin with, if they are part of something larger.
        hf_ignored: tensors that are not read: the configuration says the same, or nothing a request can ask for
            needs them.
        from_gguf: metadata -> spec, likewise; ``None`` where another architecture of the same ``gguf_name`` reads it.
        gguf_layer: tensors of a layer in a GGUF file.
        gguf_pairs_rows: whether llama.cpp keeps rows of q and k that rotate together side by side.
    """

    name: str
    model_type: str
    gguf_name: str
    example: str
    features: str
    refuses: tuple[str, ...]
    from_hf: Callable[[Fields], ModelSpec]
    hf_layer: Mapping[str, Slots] = field(default_factory=lambda: HF_LLAMA_LAYER)
    hf_prefix: str = ""
    hf_ignored: re.Pattern[str] = re.compile(r"rotary_emb\.inv_freq$")
    from_gguf: Callable[[Fields, GgufExtras], ModelSpec] | None = None
    gguf_layer: Mapping[str, Slots] = field(default_factory=lambda: GGUF_LLAMA_LAYER)
    gguf_pairs_rows: bool = False

    @property
    def hf_lm_head(self) -> str:
        """The tensor that a tied model may store a second time."""
        return f"{self.hf_prefix}lm_head.weight"

    @property
    def hf_tensors(self) -> TensorNames:
        """Every tensor name of a Hugging Face folder."""
        return TensorNames(
            whole_model={
                f"{self.hf_prefix}model.embed_tokens.weight": "embed",
                f"{self.hf_prefix}model.norm.weight": "final_norm",
                self.hf_lm_head: "lm_head",
            },
            layer=re.compile(re.escape(self.hf_prefix) + r"model\.layers\.(0|[1-9]\d{0,5})\.(.+)"),
            per_layer=self.hf_layer,
        )

    @property
    def gguf_tensors(self) -> TensorNames:
        """Every tensor name of a GGUF file."""
        return TensorNames(
            whole_model={
                "token_embd.weight": "embed",
                "output_norm.weight": "final_norm",
                "output.weight": "lm_head",
            },
            layer=re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)"),
            per_layer=self.gguf_layer,
        )
