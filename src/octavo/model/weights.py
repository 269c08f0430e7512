"""Weights into the native core: every tensor into its place, once, rounded to bfloat16 and packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo import _native
from octavo.errors import ConfigError, ModelError, UnsupportedModelError, WeightsError
from octavo.model.base import ModelSource
from octavo.model.packed import PackedCopy, weights_digest
from octavo.model.slots import check_shape
from octavo.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. ``weights_digest`` is equal for equal weights, whatever file they came from."""

    spec: ModelSpec
    model: _native.Model
    weights_digest: bytes

    @property
    def numerics_id(self) -> str:
        """What computes it: the instruction set, and the hash of the native sources."""
        return f"{self.model.isa}:{_native.SOURCE_HASH}"


def load_model(
    source: ModelSource,
    *,
    isa: str | None = None,
    threads: int | None = None,
    max_model_len: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    packed_copies: bool = True,
) -> LoadedModel:
    """Load a model's weights; at no time does more exist than the packed weights and one tensor.

    Args:
        source: where they come from.
        isa: instruction set; ``None``: ``OCTAVO_ISA``, or the best this machine has.
        threads: worker threads; ``None``: the processors this process may use.
        max_model_len: most tokens a request may have, which settles the rotary embedding of a model that has two;
            ``None``: the model's context.
        progress: told (bytes done, bytes in all) after each tensor.
        packed_copies: read and keep a packed copy in the user's cache, for weights that need dequantising.

    Raises:
        ConfigError: this machine lacks the instruction set.
        WeightsError: a file is missing or damaged, or disagrees with the configuration.
        UnsupportedModelError: a tensor is stored in a way that cannot be read.
        ModelError: the weights do not fit into this machine's memory.
    """
    isa = choose_isa(isa)
    copy = PackedCopy(source) if packed_copies and source.needs_dequantising else None
    if copy is None or not copy.exists():
        source.check()
    spec = source.spec.at_length(max_model_len or source.spec.max_position_embeddings)
    model = empty_model(spec, isa, _native.available_threads() if threads is None else threads)
    digest = copy.load(model.buffers()) if copy else None
    if digest is None:
        _fill(model, source, progress)
        digest = weights_digest(model.buffers())
        if copy:
            copy.store(model.buffers(), digest)
    elif progress is not None:
        total = source.spec.weight_bytes
        progress(total, total)
    return LoadedModel(spec, model, digest)


def choose_isa(isa: str | None = None) -> str:
    """The instruction set to run: the one asked for, else ``OCTAVO_ISA``, else the best this machine has.

    Raises:
        ConfigError: this machine does not have it; the message lists what it has.
    """
    offered = _native.supported_isas()
    wanted, origin = (isa, "isa") if isa else (os.environ.get("OCTAVO_ISA"), "OCTAVO_ISA")
    if not wanted:
        return offered[0]
    if wanted not in offered:
        raise ConfigError(f"{origin} is {wanted!r}; this machine offers {', '.join(offered)}")
    return wanted


def empty_model(spec: ModelSpec, isa: str, threads: int) -> _native.Model:
    """A native model of this shape, its rotary embedding settled, its weights still zero.

    Raises:
        ModelError: the weights do not fit into this machine's memory.
        UnsupportedModelError: the native core refuses the shape.
    """
    ropes = spec.ropes
    half = (
        ropes[0].dim // 2 if ropes else 1
    )  # a model that never rotates has no row, and the array still two dimensions
    try:
        return _native.Model(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            norm_eps=spec.norm_eps,
            attention_scale=spec.attention_scale,
            tie_word_embeddings=spec.tie_word_embeddings,
            inv_freq=np.array([rope.inv_freq() for rope in ropes], np.float32).reshape(len(ropes), half),
            rotary_scales=[rope.scale for rope in ropes],
            windows=[layer.window or 0 for layer in spec.layers],
            layer_rotaries=[-1 if layer.rope is None else ropes.index(layer.rope) for layer in spec.layers],
            pre_norm=spec.norms != "post",
            post_norm=spec.norms != "pre",
            norm_offset=spec.norm_offset,
            qk_norm=spec.qk_norm,
            qkv_bias=spec.qkv_bias,
            o_bias=spec.o_bias,
            activation=spec.activation,
            attention_softcap=spec.attention_softcap or 0.0,
            logit_softcap=spec.logit_softcap or 0.0,
            embed_scale=spec.embed_scale,
            residual_scale=spec.residual_scale,
            logit_scale=spec.logit_scale,
            isa=isa,
            threads=threads,
        )
    except MemoryError as error:
        raise ModelError(f"the weights take {spec.weight_bytes:,} bytes, more than this machine can give") from error
    except ValueError as error:
        raise UnsupportedModelError(f"the native core cannot run this model: {error}") from error


def _fill(model: _native.Model, source: ModelSource, progress: Callable[[int, int], None] | None) -> None:
    pending = source.spec.tensor_shapes()
    done, total = 0, source.spec.weight_bytes
    for slot, layer, bits in source.tensors():
        shape = pending.pop((slot, layer), None)
        if shape is None:
            raise WeightsError(f"{source.name} gives {slot} of layer {layer} twice, or the model has no such place")
        check_shape(source.name, slot, bits.shape, shape)
        model.set_tensor(slot, layer, bits)
        done += bits.nbytes
        if progress is not None:
            progress(done, total)
    if pending:
        raise WeightsError(f"{source.name} left {len(pending)} tensors unset, {next(iter(pending))} first")
