"""Lane: one sequence of one model in a KV pool of its own. Several lanes share the model, each in another format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.errors import CapacityError
from octavo.formats.kv_format import KVFormat
from octavo.model.runner import make_pool
from octavo.model.spec import ModelSpec
from octavo.planner import bytes_per_block

Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]

BLOCK_SIZE = 16


class Lane:
    """Room for one sequence of ``num_tokens`` tokens.

    Raises:
        CapacityError: this machine does not give the memory.
    """

    def __init__(self, spec: ModelSpec, model: _native.Model, formats: Sequence[KVFormat], num_tokens: int) -> None:
        groups, blocks = len(spec.kv_groups), -(-num_tokens // BLOCK_SIZE)
        self._model = model
        self._tables = np.arange(1, 1 + groups * blocks, dtype=np.int32).reshape(groups, 1, blocks)
        try:
            self._pool = make_pool(spec, formats, block_size=BLOCK_SIZE, num_blocks=1 + groups * blocks)
        except MemoryError as error:
            raise CapacityError(
                f"this machine cannot give {lane_bytes(spec, formats, num_tokens):,} bytes for a context of "
                f"{num_tokens:,} tokens; use shorter contexts"
            ) from error

    def forward(self, token_ids: Int32s, start: int, logit_rows: Int32s, logits: Float32s) -> Float32s:
        """Compute tokens ``[n]`` at positions ``start`` and up, and the logits of some of them.

        What stands before ``start`` was computed earlier; what stood there and after it is replaced. ``start`` 0
        begins a new sequence.

        Args:
            logit_rows: ``[l]``, indices into ``token_ids``.
            logits: ``[l or more, vocab]``, written.

        Returns:
            The ``[l, vocab]`` of ``logits`` that were written.
        """
        written = logits[: len(logit_rows)]
        self._model.forward(
            self._pool,
            token_ids,
            np.array([0, len(token_ids)], np.int32),
            np.array([start + len(token_ids)], np.int32),
            self._tables,
            self._zeroed if start == 0 else _NOTHING,
            logit_rows,
            written,
        )
        return written

    @property
    def _zeroed(self) -> Int32s:
        """Copies of the null block over every block: nothing of an earlier sequence is left."""
        blocks = self._tables.reshape(-1)
        return np.stack([np.zeros_like(blocks), blocks], axis=1)


def lane_bytes(spec: ModelSpec, formats: Sequence[KVFormat], num_tokens: int) -> int:
    """Bytes of KV memory that a lane takes."""
    blocks = 1 + len(spec.kv_groups) * -(-num_tokens // BLOCK_SIZE)
    return blocks * bytes_per_block(spec, BLOCK_SIZE, formats)


_NOTHING = np.empty((0, 2), np.int32)
