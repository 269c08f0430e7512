"""ModelRunner: one native call per step, one more to draw the tokens. Owns the KV pool's bytes, decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.formats.kv_format import KVFormat
from octavo.model.spec import ModelSpec

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A ragged batch of n tokens in r sequences, as the native core reads it.

    ``token_ids [n]``, ``query_start_loc [r + 1]``, ``seq_lens [r]`` (tokens in the cache after this pass),
    ``block_tables [groups, r, m]``, ``copies [c, 2]`` (source, target) in order, source 0 zeroes the target,
    ``logit_rows [l]`` indices of tokens whose logits are wanted. All int32.
    """

    token_ids: Int32s
    query_start_loc: Int32s
    seq_lens: Int32s
    block_tables: Int32s
    copies: Int32s
    logit_rows: Int32s


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """What decides s draws; see ``_native.Model.sample`` for shapes. Flat token arrays are cut by ``*_starts``."""

    rows: Int32s
    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    min_p: Float32s
    repetition_penalty: Float32s
    presence_penalty: Float32s
    frequency_penalty: Float32s
    seeds: npt.NDArray[np.uint64]
    choices: Int32s
    positions: Int32s
    prompt_starts: Int32s
    prompt_tokens: Int32s
    output_starts: Int32s
    output_tokens: Int32s
    bias_starts: Int32s
    bias_tokens: Int32s
    bias_values: Float32s
    bitmask_rows: Int32s
    bitmask: Int32s
    num_top: Int32s


class Scores(NamedTuple):
    """Log-probabilities of given tokens: ``logprobs [s]``, ``ranks [s]`` from 1, the best tokens ``[s, t]`` beside."""

    logprobs: Float32s
    ranks: Int32s
    top_ids: Int32s
    top_logprobs: Float32s


class Samples(NamedTuple):
    """Drawn tokens ``token_ids [s]`` and, for samples that asked, their scores as in :class:`Scores`."""

    token_ids: Int32s
    logprobs: Float32s
    ranks: Int32s
    top_ids: Int32s
    top_logprobs: Float32s


class ModelRunner:
    """Runs one model over one KV pool. Not thread-safe: the engine's thread is its only caller."""

    def __init__(
        self,
        spec: ModelSpec,
        model: _native.Model,
        *,
        kv_formats: Sequence[KVFormat],
        block_size: int,
        num_blocks: int,
        max_logit_rows: int,
    ) -> None:
        self.spec = spec
        self.model = model
        self.pool = make_pool(spec, kv_formats, block_size=block_size, num_blocks=num_blocks)
        self._logits = np.empty((max_logit_rows, spec.vocab_size), np.float32)

    def execute(self, batch: ForwardBatch) -> Float32s:
        """Compute the batch, write its keys and values into the pool, and return logits ``[l, vocab_size]``.

        The logits are a view that the next call overwrites.
        """
        logits = self._logits[: len(batch.logit_rows)]
        self.model.forward(
            self.pool,
            batch.token_ids,
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_tables,
            batch.copies,
            batch.logit_rows,
            logits,
        )
        return logits

    def score(self, rows: Int32s, targets: Int32s, num_top: int) -> Scores:
        """Log-probabilities of ``targets [s]`` at tokens ``rows [s]`` of the batch executed last."""
        return Scores(*self.model.score(rows, targets, num_top))

    def sample(self, logits: Float32s, batch: SampleBatch) -> Samples:
        """Draw one token per sample from logits that :meth:`execute` returned."""
        return Samples(
            *self.model.sample(
                logits,
                batch.rows,
                batch.temperature,
                batch.top_k,
                batch.top_p,
                batch.min_p,
                batch.repetition_penalty,
                batch.presence_penalty,
                batch.frequency_penalty,
                batch.seeds,
                batch.choices,
                batch.positions,
                batch.prompt_starts,
                batch.prompt_tokens,
                batch.output_starts,
                batch.output_tokens,
                batch.bias_starts,
                batch.bias_tokens,
                batch.bias_values,
                batch.bitmask_rows,
                batch.bitmask,
                batch.num_top,
            )
        )


def make_pool(spec: ModelSpec, kv_formats: Sequence[KVFormat], *, block_size: int, num_blocks: int) -> _native.KVPool:
    """A KV pool for this model, ``kv_formats`` giving each layer's format.

    Raises:
        MemoryError: the system does not give the memory.
    """
    layer_group, layer_index = [0] * spec.num_layers, [0] * spec.num_layers
    for group, members in enumerate(spec.kv_groups):
        for index, layer in enumerate(members):
            layer_group[layer], layer_index[layer] = group, index
    return _native.KVPool(
        group_sizes=[len(members) for members in spec.kv_groups],
        layer_group=layer_group,
        layer_index=layer_index,
        key_formats=[layer.key for layer in kv_formats],
        value_formats=[layer.value for layer in kv_formats],
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
    )
