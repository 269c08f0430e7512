"""Phi-3, 3.5 and 4: fused projections, a window, and two rotary embeddings where the context was made longer."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.model.architecture import GGUF_LLAMA_LAYER, HF_LLAMA_LAYER, Architecture, GgufExtras
from octavo.model.fields import Fields
from octavo.model.gguf_fields import spec_from_gguf_fields, window_from_gguf
from octavo.model.hf_fields import (
    HfDefaults,
    agreed,
    check_layer_types,
    rope_from_table,
    rope_tables,
    rope_type,
    spec_from_hf_fields,
    theta_of,
)
from octavo.model.rotary import Rotary, longrope, longrope_scale
from octavo.model.slots import Slots
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

_NAME = "Phi3ForCausalLM"
_POSITIONS = 4096
"""What transformers takes for ``max_position_embeddings`` and for ``original_max_position_embeddings``."""
_OLDER_NAMES = {"su": "longrope", "yarn": "longrope"}
"""Types of rotary scaling in the first configurations, which transformers follows as longrope."""
_OWN_CODE = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": f"modeling_phi3.{_NAME}"}
"""Code that Microsoft publishes beside the weights; transformers has the same under these names."""
_UNSTATED_WINDOWS = {4096: 2047, 131_072: 262_144}
"""Windows of the models, by their context, whose first GGUF files do not state them."""


def _from_hf(fields: Fields) -> ModelSpec:
    _check_code(fields)
    for neutral in ("full_attn_mod", "interpolate_factor"):
        fields.only(neutral, 1)
    defaults = HfDefaults(max_position_embeddings=_POSITIONS, norm_eps=1e-5)
    return spec_from_hf_fields(fields, _NAME, defaults, layers=_layers, rotary=_rotary)


def _check_code(fields: Fields) -> None:
    """Refuse code of somebody else's beside the weights, except for the tokenizer."""
    code = fields.get("auto_map")
    for kind, name in code.items() if isinstance(code, Mapping) else [("", code)] if code else ():
        if kind != "AutoTokenizer" and str(name).split("--")[-1] != _OWN_CODE.get(kind):
            raise fields.refusal("auto_map", code, "transformers' own Phi-3")


def _layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    window = fields.integer_or_none("sliding_window")
    check_layer_types(fields, ["full_attention" if window is None else "sliding_attention"] * count)
    return (LayerSpec(window, rope),) * count


def _rotary(fields: Fields, head_dim: int, max_positions: int, default_theta: float) -> Rotary:
    """Rotary settings. The original context stands beside their table, and wins over what the table says."""
    outer, tables = fields.get("rope_theta"), rope_tables(fields)
    original = fields.integer("original_max_position_embeddings", _POSITIONS)
    share = _share(fields, tables)
    dim, found = int(head_dim * share), []
    for table in tables:
        theta = theta_of(table, outer, default_theta)
        table.only("original_max_position_embeddings", original)
        if rope_type(table, _OLDER_NAMES) == "longrope":
            table.only("partial_rotary_factor", share)
            found.append(_longrope(table, theta, dim, max_positions, original))
        else:
            found.append(Rotary(rope_from_table(table, theta, dim, original, share=share)))
    return agreed(found) or Rotary(RopeSpec(fields.number("rope_theta", default_theta), dim))


def _share(fields: Fields, tables: list[Fields]) -> float:
    """Which part of a head is rotated: ``partial_rotary_factor``, beside the tables or in them."""
    key = "partial_rotary_factor"
    given = next((place for place in (fields, *tables) if place.get(key) is not None), None)
    share = given.number(key) if given else 1.0
    if given and share > 1:
        raise given.refusal(key, share, "1 or less")
    return share


def _longrope(table: Fields, theta: float, dim: int, max_positions: int, original: int) -> Rotary:
    scale = longrope_scale(table.number("factor", max_positions / original), original)
    rotary = longrope(
        theta,
        dim,
        short=table.numbers("short_factor"),
        long=table.numbers("long_factor"),
        original=original,
        scale=table.number("attention_factor", scale),
    )
    table.refuse_rest()
    return rotary


def _from_gguf(fields: Fields, extras: GgufExtras) -> ModelSpec:
    rotary_dim = fields.integer_or_none("rope.dimension_count")
    return spec_from_gguf_fields(fields, extras, _NAME, layers=_gguf_layers, rotary_dim=rotary_dim)


def _gguf_layers(fields: Fields, count: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    return (LayerSpec(_gguf_window(fields), rope),) * count


def _gguf_window(fields: Fields) -> int | None:
    if fields.get("attention.sliding_window") is not None:
        return window_from_gguf(fields)
    context = fields.integer("context_length")
    return _UNSTATED_WINDOWS.get(context) or fields.integer("attention.sliding_window")


def _fused(names: Mapping[str, Slots], *, qkv: str, gate_up: str) -> dict[str, Slots]:
    """Names of a layer's tensors where q, k and v are one, and gate and up are one."""
    fused: tuple[Slots, ...] = ("q", "k", "v"), ("gate", "up")
    apart = {name: slots for name, slots in names.items() if not any(slots[0] in tensor for tensor in fused)}
    return apart | {qkv: fused[0], gate_up: fused[1]}


ARCHITECTURE = Architecture(
    name=_NAME,
    model_type="phi3",
    gguf_name="phi3",
    example="Phi-3, 3.5 and 4 mini, Phi-3 medium, Phi-4",
    features="a window; rotation of a part of each head; longrope, its factors chosen once by `max_model_len`",
    refuses=("mixture of experts", "images", "speech"),
    from_hf=_from_hf,
    hf_layer=_fused(HF_LLAMA_LAYER, qkv="self_attn.qkv_proj.weight", gate_up="mlp.gate_up_proj.weight"),
    from_gguf=_from_gguf,
    gguf_layer=_fused(GGUF_LLAMA_LAYER, qkv="attn_qkv.weight", gate_up="ffn_up.weight"),
)
