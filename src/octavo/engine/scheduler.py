"""Scheduler: what is computed in the next step. It knows no prefill and no decode; computed tokens catch up.

One step in order: running requests, oldest first, get the blocks for their missing tokens (preempting the
youngest when there are none); then, if nobody was preempted, waiting requests are admitted oldest first::

    budget  | decodes: one token each, always in | missing tokens of older ... younger | admitted ... |
            0                                                                    max_num_batched_tokens
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Protocol

from octavo.engine.outputs import FinishReason
from octavo.engine.request import Request, RequestStatus
from octavo.kv.hit import PrefixHit
from octavo.kv.loading import LoadTarget
from octavo.kv.manager import KVCacheManager
from octavo.kv.sequence import SequenceBlocks


@dataclass(slots=True)
class SchedulerOutput:
    """What one step computes: ``num_tokens[i]`` missing tokens of ``requests[i]``, after ``copies`` were
    made.

    ``copies``: (source, target) blocks in order; source 0 zeroes the target. ``forks``: (computed, new)
    requests; the new one shares the computed one's blocks and its row of logits once the step is computed.
    ``loads``: requests that wait for blocks to be read, and which; nothing in ``copies`` writes to these. ``admitted``:
    those that run for the first time, or again after a preemption.
    ``num_recomputed_prompt_tokens``: prompt tokens among all these that were there before a preemption.
    """

    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    forks: list[tuple[Request, Request]] = field(default_factory=list)
    loads: list[tuple[Request, list[LoadTarget]]] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    num_recomputed_prompt_tokens: int = 0

    @property
    def total_num_tokens(self) -> int:
        return sum(self.num_tokens)


class Loader(Protocol):
    """Knows what a tier holds."""

    def num_blocks_to_load(self, seq: SequenceBlocks, hit: PrefixHit) -> int:
        """How many full blocks of ``seq`` there would be if the tier were asked; 0 if it is better not to."""


class Scheduler:
    """Owns the order of requests and asks the KV cache for their blocks.

    ``waiting`` and ``running`` are kept sorted, oldest first: by priority value, then by arrival. A waiting
    request does not displace a running one of lower priority; it goes first when room appears. ``loading`` are those
    whose blocks a tier reads: they hold blocks and a seat, and run when :meth:`finish_loading` says so.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_running: int,
        max_num_batched_tokens: int,
        loader: Loader | None = None,
    ) -> None:
        self.kv = kv
        self.loading: list[Request] = []
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._free_rows = list(range(max_num_running - 1, -1, -1))
        self._loader = loader
        self._loaded: list[Request] = []  # since the last step was scheduled

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.loading
        yield from self.waiting

    @property
    def has_unfinished(self) -> bool:
        """Whether a request runs, waits, or has ended while it was loaded and still holds its blocks."""
        return bool(self.running or self.waiting or self.loading)

    def add(self, request: Request) -> None:
        """Queue a request. Its blocks must be those of ``kv.new_sequence`` and its size must fit the pool."""
        bisect.insort(self.waiting, request, key=_order)

    def schedule(self) -> SchedulerOutput:
        """Choose the next step and take the blocks it writes. Empty only if nothing is unfinished, or all that could
        run is loaded still.

        Mutates: preempts, admits, reserves seats for forks. The caller computes the step, then calls
        :meth:`advance` with the same output; and has read what ``loads`` says, then calls :meth:`finish_loading`.
        """
        output = SchedulerOutput(admitted=self._loaded)
        self._loaded = []
        budget = self._schedule_running(output)
        if not output.preempted:
            for request, count in zip(output.requests, output.num_tokens, strict=True):
                if request.group.params.n > 1:
                    self._reserve_forks(request, count, output)
            self._admit(output, budget)
        return output

    def advance(self, output: SchedulerOutput) -> None:
        """Record that a scheduled step was computed: only now are its blocks published and its forks made.

        The block in which a prompt ends is published as far as it goes; a decode publishes full blocks alone.
        """
        for request, count in zip(output.requests, output.num_tokens, strict=True):
            request.num_computed_tokens += count
            prompt_ends = (count > 1 or not request.num_output_tokens) and not request.num_missing_tokens
            self.kv.publish(request.blocks, request.num_computed_tokens, publish_tail=prompt_ends)
            if request.group.retain:
                self._retain(request)
        for computed, new in output.forks:
            new.blocks = self.kv.fork(computed.blocks, new.token_ids)
            new.num_computed_tokens = computed.num_computed_tokens
            new.num_retained = computed.num_retained
            self._start(new)

    def finish_loading(self, request: Request, loaded: Set[tuple[int, int]]) -> None:
        """A request's blocks have been read, as many as are ``loaded``: the rest of it is computed. One that has ended
        meanwhile gives its blocks back, now that nobody writes to them.
        """
        self.loading.remove(request)
        if request.status is RequestStatus.FINISHED:
            self.kv.release(request.blocks, publish_tail=False)
            self._free_row(request)
            return
        self.kv.finish_load(request.blocks, loaded)
        self._note_cached(request, request.blocks.num_computed)
        self._start(request)
        self._loaded.append(request)

    def append_token(self, request: Request, token: int) -> None:
        """Give a running request, all of whose tokens are computed, its next token."""
        request.token_ids.append(token)
        if not request.params.use_cache:
            self.kv.restart(request.blocks)
            request.num_computed_tokens = 0

    def finish(self, request: Request, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End a request in whatever state it is, and give its blocks back. Finishing twice is harmless."""
        if request.status is RequestStatus.RUNNING:
            self._stop(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        elif request.status is RequestStatus.FINISHED:
            return
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason

    def clear(self) -> None:
        """Forget every request, whatever state a failure left it in, and give all blocks back."""
        for request in self:
            self.kv.release(request.blocks, publish_tail=False)
        self.running.clear()
        self.loading.clear()
        self.waiting.clear()

    # One step ----------------------------------------------------------------------------------------

    def _schedule_running(self, output: SchedulerOutput) -> int:
        """Schedule running requests, oldest first; return the budget that is left."""
        budget = self.max_num_batched_tokens
        reserved = sum(request.num_missing_tokens == 1 for request in self.running)
        index = 0
        while index < len(self.running):
            request = self.running[index]
            missing = request.num_missing_tokens
            if missing == 1:
                count = 1
                reserved -= 1
            else:
                count = min(missing, budget - reserved)
            if count > 0:
                while (allocation := self.kv.extend(request.blocks, request.num_computed_tokens + count)) is None:
                    victim = self.running[-1]
                    if victim is not request and victim.num_missing_tokens == 1:
                        reserved -= 1
                    self._preempt(victim, output)
                    if victim is request:
                        return budget
                self._take(request, count, allocation.copies, output)
                budget -= count
            index += 1
        return budget

    def _admit(self, output: SchedulerOutput, budget: int) -> None:
        index = 0
        while index < len(self.waiting) and budget > 0 and self._free_rows:
            request = self.waiting[index]
            hit = self.kv.find_hit(request.blocks)
            if hit.pending:
                index += 1  # somebody is computing this very prefix: wait for it, and let others pass
                continue
            if self._start_loading(request, hit, output):
                continue
            count = self._start_waiting(request, hit, budget, output)
            if count == 0:
                return  # strictly in order: a smaller, younger request does not overtake for want of blocks
            budget -= count

    def _start_waiting(self, request: Request, hit: PrefixHit, budget: int, output: SchedulerOutput) -> int:
        """Admit one request and return how many tokens of it are scheduled, 0 if its blocks do not fit."""
        count = min(request.num_tokens - hit.num_tokens, budget)
        allocation = None
        if self._has_room_for(request, hit):
            allocation = self.kv.admit(request.blocks, hit, hit.num_tokens + count)
        if allocation is None:
            return 0
        self.waiting.remove(request)
        self._note_cached(request, hit.num_tokens)
        self._start(request)
        output.admitted.append(request)
        self._take(request, count, allocation.copies, output)
        if request.group.params.n > 1:
            self._reserve_forks(request, count, output)
        return count

    def _start_loading(self, request: Request, hit: PrefixHit, output: SchedulerOutput) -> bool:
        """Have a tier read what follows the hit, if that is better than to compute it and there is room."""
        num_blocks = 0 if self._loader is None else self._loader.num_blocks_to_load(request.blocks, hit)
        if not num_blocks or not self._has_room_for(request, hit):
            return False
        targets = self.kv.begin_load(request.blocks, hit, num_blocks)
        if targets is None:
            return False
        self.waiting.remove(request)
        self.loading.append(request)
        request.table_row = self._free_rows.pop()
        request.status = RequestStatus.LOADING
        output.loads.append((request, targets))
        return True

    def _note_cached(self, request: Request, num_tokens: int) -> None:
        """The first ``num_tokens`` of a request that begins to run need not be computed."""
        request.num_computed_tokens = num_tokens
        if request.group.num_cached_tokens is None:
            request.group.num_cached_tokens = num_tokens

    def _has_room_for(self, request: Request, hit: PrefixHit) -> bool:
        """Whether all tokens there are, of ``request`` and of those that hold blocks, have blocks.

        Admitting more would preempt it again before it is done: computing for nothing. One alone is admitted if its
        next step fits.
        """
        if not self.running and not self.loading:
            return True
        needed = self._num_blocks_short(request, request.num_tokens - hit.num_tokens)
        needed -= sum(block.ref_count > 0 for blocks in hit.blocks for block in blocks)
        needed += sum(
            self._num_blocks_short(other, other.num_missing_tokens) for other in (*self.running, *self.loading)
        )
        return needed <= self.kv.num_free_blocks

    def _num_blocks_short(self, request: Request, missing: int) -> int:
        """Blocks beyond those that ``request`` holds, for the tokens it has; ``missing`` are to be computed."""
        step = min(max(missing, 1), self.max_num_batched_tokens)
        return self.kv.num_blocks_short(request.blocks, request.num_tokens, max_step_tokens=step)

    def _take(self, request: Request, count: int, copies: list[tuple[int, int]], output: SchedulerOutput) -> None:
        output.requests.append(request)
        output.num_tokens.append(count)
        output.copies.extend(copies)
        if request.num_lost_prompt_tokens:
            start, lost = request.num_computed_tokens, request.num_lost_prompt_tokens
            output.num_recomputed_prompt_tokens += max(0, min(start + count, lost) - start)
            if start + count >= lost:
                request.num_lost_prompt_tokens = 0

    def _retain(self, request: Request) -> None:
        """Keep what the caller wants kept of the prompt, each part as soon as it is computed."""
        for num_tokens, until in request.group.retain[request.num_retained :]:
            if num_tokens > request.num_computed_tokens:
                return
            self.kv.retain(request.blocks, num_tokens, until)
            request.num_retained += 1

    def _reserve_forks(self, request: Request, count: int, output: SchedulerOutput) -> None:
        """Seat the siblings that can share ``request``'s prompt, if this step completes it.

        None of them computes the prompt beside it: while a prompt is incomplete it takes what budget there is, so
        nobody is admitted, and when it completes they are seated first.
        """
        computed = request.num_computed_tokens + count
        if not request.params.use_cache or request.num_output_tokens or computed != request.num_prompt_tokens:
            return
        for sibling in request.group.requests:
            if not self._free_rows:
                return
            fresh = sibling.status is RequestStatus.WAITING and sibling.num_output_tokens == 0
            if fresh and sibling.table_row < 0:
                self.waiting.remove(sibling)
                sibling.table_row = self._free_rows.pop()
                output.forks.append((request, sibling))

    # States ------------------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        if request.table_row < 0:
            request.table_row = self._free_rows.pop()
        request.status = RequestStatus.RUNNING
        bisect.insort(self.running, request, key=_order)

    def _stop(self, request: Request) -> None:
        self.running.remove(request)
        self.kv.release(request.blocks, publish_tail=True)
        self._free_row(request)

    def _free_row(self, request: Request) -> None:
        self._free_rows.append(request.table_row)
        request.table_row = -1

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        """Take a running request's blocks away; its tokens, output included, are computed again later."""
        self._stop(request)
        lost = min(request.num_computed_tokens, request.num_prompt_tokens)
        request.num_lost_prompt_tokens = max(lost, request.num_lost_prompt_tokens)
        request.num_computed_tokens = request.num_retained = 0
        request.status = RequestStatus.WAITING
        request.group.metrics.num_preemptions += 1
        self.add(request)
        output.preempted.append(request)


def _order(request: Request) -> tuple[int, int]:
    return request.order
