"""BatchBuilder: from what the scheduler chose to the arrays the native core reads.

Everything that lasts longer than a step is kept in arrays with one row per running request
(``Request.table_row``): block tables, of which only new ids are written, and sampling parameters. A step
gathers rows. Requests with default parameters cost nothing beyond that; penalties, biases and masks are flat
slices for those that ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from octavo.engine.request import Request
from octavo.engine.scheduler import SchedulerOutput
from octavo.engine.shaping import NO_TOKENS, NO_VALUES
from octavo.model.runner import Float32s, ForwardBatch, Int32s, SampleBatch

_NO_COPIES = np.empty((0, 2), np.int32)

_PARAMETERS = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("seeds", np.uint64),
        ("choices", np.int32),
        ("num_top", np.int32),
    ],
    align=True,  # a column of one row is handed on as it lies there, and the native core reads no crooked address
)
"""One running request's row of sampling parameters; the names are those of :class:`SampleBatch`."""


class Draw(NamedTuple):
    """One token to draw: for ``request``, from row ``row`` of the step's logits."""

    request: Request
    row: int


class BatchBuilder:
    """Builds the batches of one engine. What it returns is valid until the same method is called again."""

    def __init__(
        self, *, num_groups: int, max_num_seqs: int, max_blocks: int, max_num_tokens: int, vocab_size: int
    ) -> None:
        self._block_tables = np.zeros((num_groups, max_num_seqs, max_blocks), np.int32)
        self._token_ids = np.empty(max_num_tokens, np.int32)
        self._query_start_loc = np.zeros(max_num_seqs + 1, np.int32)
        self._mask_words = -(-vocab_size // 32)
        self._no_mask = np.empty((0, self._mask_words), np.int32)
        self._no_starts = np.zeros(max_num_seqs + 1, np.int32)
        self._no_mask_rows = np.full(max_num_seqs, -1, np.int32)
        self._parameters = np.zeros(max_num_seqs, _PARAMETERS)
        self._parameter_owner: list[Request | None] = [None] * max_num_seqs
        self._drawing: list[Request] = []  # whose parameters _columns holds, in order
        self._columns: dict[str, Any] = {}

    def forward(self, output: SchedulerOutput) -> tuple[ForwardBatch, list[Draw]]:
        """The step's forward pass, and the requests that draw a token from it (forks after their origin)."""
        tokens: list[int] = []
        ends, seq_lens, rows = [0], list[int](), list[int]()
        logit_rows: list[int] = []
        draws: list[Draw] = []
        forks: dict[Request, list[Request]] = {}
        for computed, new in output.forks:
            forks.setdefault(computed, []).append(new)
        width = 1
        for request, count in zip(output.requests, output.num_tokens, strict=True):
            start = request.num_computed_tokens
            end = start + count
            if count == 1:
                tokens.append(request.token_ids[start])
            else:
                tokens += request.token_ids[start:end]
            ends.append(len(tokens))
            seq_lens.append(end)
            rows.append(request.table_row)
            width = max(width, self._write_table(request))
            if end == len(request.token_ids) and request.group.max_output_tokens:
                row = len(logit_rows)
                draws.append(Draw(request, row))
                if forks:
                    draws.extend(Draw(sibling, row) for sibling in forks.get(request, ()))
                logit_rows.append(len(tokens) - 1)
        token_ids = self._token_ids[: len(tokens)]
        token_ids[:] = tokens
        query_start_loc = self._query_start_loc[: len(ends)]
        query_start_loc[:] = ends
        return ForwardBatch(
            token_ids=token_ids,
            query_start_loc=query_start_loc,
            seq_lens=np.array(seq_lens, np.int32),
            block_tables=np.ascontiguousarray(self._block_tables[:, rows, :width]),
            copies=np.array(output.copies, np.int32) if output.copies else _NO_COPIES,
            logit_rows=np.array(logit_rows, np.int32),
        ), draws

    def sample(self, draws: Sequence[Draw]) -> SampleBatch:
        """The step's draws. Every request in it has its table row, and all of its tokens computed."""
        requests = [draw.request for draw in draws]
        if requests != self._drawing:  # from one step to the next they are mostly the same
            table = self._parameters[[self._parameter_row(request) for request in requests]]
            self._drawing = requests
            self._columns = {name: np.ascontiguousarray(table[name]) for name in _PARAMETERS.names or ()}
        shaping = self._shape(requests) if any(r.shaping for r in requests) else self._no_shaping(len(draws))
        return SampleBatch(
            rows=np.array([draw.row for draw in draws], np.int32),
            positions=np.array([request.num_output_tokens for request in requests], np.int32),
            **self._columns,
            **shaping,
        )

    def _write_table(self, request: Request) -> int:
        """Bring a request's table row up to date and return how many blocks it has in each group."""
        blocks = request.blocks
        num_blocks = blocks.num_blocks
        if blocks.table_version != request.table_version:
            request.table_version = blocks.table_version
            request.num_table_blocks = 0
        known = request.num_table_blocks
        if known < num_blocks:
            for group, block_ids in enumerate(blocks.block_ids):
                self._block_tables[group, request.table_row, known:num_blocks] = block_ids[known:]
            request.num_table_blocks = num_blocks
        return num_blocks

    def _parameter_row(self, request: Request) -> int:
        """A request's row of sampling parameters, written when the row gets a new owner."""
        row = request.table_row
        if self._parameter_owner[row] is not request:
            self._parameter_owner[row] = request
            params = request.params
            self._parameters[row] = (
                params.temperature,
                max(params.top_k, 0),
                params.top_p,
                params.min_p,
                params.repetition_penalty,
                params.presence_penalty,
                params.frequency_penalty,
                request.seed,
                request.index,
                -1 if params.logprobs is None else params.logprobs,
            )
        return row

    def _shape(self, requests: list[Request]) -> dict[str, Any]:
        prompts, outputs, bias_tokens, masks = list[Int32s](), list[Int32s](), list[Int32s](), list[Int32s]()
        bias_values: list[Float32s] = []
        mask_rows: list[int] = []
        for request in requests:
            shaping = request.shaping
            if shaping is None:
                for parts in (prompts, outputs, bias_tokens):
                    parts.append(NO_TOKENS)
                mask_rows.append(-1)
                continue
            prompts.append(shaping.prompt_tokens)
            outputs.append(shaping.output_tokens(request.token_ids, request.num_prompt_tokens))
            tokens, values = shaping.bias(request.num_output_tokens)
            bias_tokens.append(tokens)
            bias_values.append(values)
            mask = shaping.mask()
            mask_rows.append(-1 if mask is None else len(masks))
            if mask is not None:
                masks.append(mask)
        return {
            "prompt_starts": _starts(prompts),
            "prompt_tokens": np.concatenate(prompts),
            "output_starts": _starts(outputs),
            "output_tokens": np.concatenate(outputs),
            "bias_starts": _starts(bias_tokens),
            "bias_tokens": np.concatenate(bias_tokens),
            "bias_values": np.concatenate(bias_values),
            "bitmask_rows": np.array(mask_rows, np.int32),
            "bitmask": np.stack(masks) if masks else self._no_mask,
        }

    def _no_shaping(self, num_draws: int) -> dict[str, Any]:
        starts = self._no_starts[: num_draws + 1]
        return {
            "prompt_starts": starts,
            "prompt_tokens": NO_TOKENS,
            "output_starts": starts,
            "output_tokens": NO_TOKENS,
            "bias_starts": starts,
            "bias_tokens": NO_TOKENS,
            "bias_values": NO_VALUES,
            "bitmask_rows": self._no_mask_rows[:num_draws],
            "bitmask": self._no_mask,
        }


def _starts(parts: list[Int32s]) -> Int32s:
    starts = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts
