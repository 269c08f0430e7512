"""The native core: weights, KV pool, forward pass and sampler. Sizes are checked here, at the binding.

Every function raises ``TypeError`` for an argument that is no array of its dtype and dimensions, C-contiguous and
aligned, and ``ValueError`` for a length or value that is not allowed, before anything is written; the message names the
argument. It raises ``MemoryError`` when memory runs out, and releases the GIL while it computes. One object is used
by one thread at a time; a second caller gets ``RuntimeError``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LAYOUT_VERSION: int
"""Version of the KV block layout and of the packed weights."""
SOURCE_HASH: str
"""Hash of the native sources at build time; with the instruction set it is the numerics id."""

def supported_isas() -> list[str]:
    """Instruction sets this machine can run, best first: of avx512_bf16, avx512, avx2, generic."""

def available_threads() -> int:
    """Processors this process may use: the smaller of its affinity mask and its cgroup quota."""

def measure_roof(isa: str, threads: int, megabytes: int = 256) -> tuple[float, float]:
    """What this machine gives at most: (bytes per second read from memory, bf16 operations per second)."""

class Model:
    """A decoder: packed weights, worker threads and scratch memory."""

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norm_eps: float,
        attention_scale: float,
        tie_word_embeddings: bool,
        inv_freq: npt.NDArray[np.float32],
        windows: Sequence[int],
        isa: str,
        threads: int,
        layer_rotaries: Sequence[int] | None = None,
        rotary_scales: Sequence[float] | None = None,
        pre_norm: bool = True,
        post_norm: bool = False,
        norm_offset: float = 0.0,
        qk_norm: str = "none",
        qkv_bias: bool = False,
        o_bias: bool = False,
        activation: str = "silu",
        attention_softcap: float = 0.0,
        logit_softcap: float = 0.0,
        embed_scale: float = 1.0,
        residual_scale: float = 1.0,
        logit_scale: float = 1.0,
    ) -> None:
        """A model of this shape; the words are those of :class:`octavo.model.spec.ModelSpec`.

        ``windows[layer]``: keys a query sees, itself included; 0 for all. ``inv_freq [rotaries, rotary_dim / 2]`` with
        ``rotary_scales [rotaries]`` (by default all 1) are the rotary embeddings, and ``layer_rotaries[layer]`` says
        which a layer has: by default the first, -1 for none. A softcap of 0 is none.
        """

    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    def set_tensor(self, slot: str, layer: int, tensor: npt.NDArray[Any]) -> None:
        """Pack one tensor into its place. ``tensor`` is C-contiguous uint16 holding bfloat16 bits.

        Slots with ``layer`` -1: ``embed`` and ``lm_head [vocab, hidden]`` (the latter only when untied),
        ``final_norm [hidden]``. Per layer: ``q``, ``k``, ``v``, ``o``, ``gate``, ``up``, ``down`` and the norms and
        biases that the model has, with the shapes of :meth:`octavo.model.spec.ModelSpec.tensor_shapes`.
        """
    def buffers(self) -> list[tuple[str, npt.NDArray[np.uint8]]]:
        """Writable views of the packed weights, by name, in a fixed order: what a packed copy holds."""
    def forward(
        self,
        pool: KVPool,
        token_ids: npt.NDArray[np.int32],
        query_start_loc: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        block_tables: npt.NDArray[np.int32],
        copies: npt.NDArray[np.int32],
        logit_rows: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
    ) -> None:
        """One forward pass over a ragged batch of n tokens in r sequences; writes ``logits``.

        ``token_ids [n]``; ``query_start_loc [r + 1]``, strictly ascending from 0 to n; ``seq_lens [r]`` counts
        the tokens in the cache after this pass, so token i of sequence s has position ``seq_lens[s] -
        (query_start_loc[s + 1] - query_start_loc[s]) + i``; ``block_tables [groups, r, m]``; ``copies [c, 2]``
        blocks to copy (source, target) in order before anything is computed, where source 0, the null block,
        zeroes the target; ``logit_rows [l]`` indices into the n tokens, in any order; ``logits [l,
        vocab_size]`` float32, written.
        """
    def score(
        self,
        hidden_rows: npt.NDArray[np.int32],
        targets: npt.NDArray[np.int32],
        num_top: int,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Log-probabilities for tokens of the last forward pass, in row chunks, never rows x vocabulary at once.

        ``hidden_rows [s]`` indices into that pass's n tokens; ``targets [s]`` the token scored at each. Returns
        ``(logprob [s], rank [s] from 1, top_ids [s, num_top], top_logprobs [s, num_top])``; ties go to the lower id.
        """
    def sample(
        self,
        logits: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int32],
        temperature: npt.NDArray[np.float32],
        top_k: npt.NDArray[np.int32],
        top_p: npt.NDArray[np.float32],
        min_p: npt.NDArray[np.float32],
        repetition_penalty: npt.NDArray[np.float32],
        presence_penalty: npt.NDArray[np.float32],
        frequency_penalty: npt.NDArray[np.float32],
        seeds: npt.NDArray[np.uint64],
        choices: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        prompt_starts: npt.NDArray[np.int32],
        prompt_tokens: npt.NDArray[np.int32],
        output_starts: npt.NDArray[np.int32],
        output_tokens: npt.NDArray[np.int32],
        bias_starts: npt.NDArray[np.int32],
        bias_tokens: npt.NDArray[np.int32],
        bias_values: npt.NDArray[np.float32],
        bitmask_rows: npt.NDArray[np.int32],
        bitmask: npt.NDArray[np.int32],
        num_top: npt.NDArray[np.int32],
    ) -> tuple[
        npt.NDArray[np.int32],
        npt.NDArray[np.float32],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.float32],
    ]:
        """Draw one token for each of s samples; ``logits [l, vocab]`` is only read, and samples may share a row.

        All per-sample arrays have length s. ``rows`` picks the row of ``logits``. ``temperature`` 0 is greedy.
        ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 switch a filter off. ``seeds``, ``choices`` and
        ``positions`` (the output position) determine the draw. ``*_starts [s + 1]`` delimit each sample's slice
        of the flat arrays: the tokens its penalties count, and its logit bias (-inf bans a token).
        ``bitmask_rows [s]`` is -1 or a row of ``bitmask [b, ceil(vocab / 32)]``, whose set bits are allowed.
        ``num_top [s]`` is -1 for no log-probabilities, else how many alternatives.

        Returns ``(token_ids [s], logprobs [s], ranks [s], top_ids [s, t], top_logprobs [s, t])`` with t the
        largest of ``num_top``; log-probabilities are of the model's own logits, before any change; ties go to
        the lower id. Entries past a sample's own ``num_top`` are -1 and 0. A row whose every token is banned
        returns token -1.
        """

class KVPool:
    """The blocks: one mapping, block-major. Block 0 is the null block: zero, never written."""

    def __init__(
        self,
        *,
        group_sizes: Sequence[int],
        layer_group: Sequence[int],
        layer_index: Sequence[int],
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        num_blocks: int,
        key_formats: Sequence[str] | None = None,
        value_formats: Sequence[str] | None = None,
    ) -> None:
        """``group_sizes[g]`` layers in group g; layer l is number ``layer_index[l]`` of group ``layer_group[l]``.

        ``key_formats`` and ``value_formats`` name each layer's codec: bf16 (the default), int8, fp8 or int4.

        Raises ``MemoryError`` if the mapping cannot be made.
        """

    @property
    def block_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    def block(self, block_id: int) -> npt.NDArray[np.uint8]:
        """A writable view of one block's bytes, ``[block_bytes]``."""
