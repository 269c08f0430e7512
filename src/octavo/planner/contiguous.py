"""KV memory without paging, simulated: one contiguous reservation per sequence, made when it is admitted.

Before PagedAttention (Kwon et al., SOSP 2023) an engine set aside the memory for all tokens that a sequence may come to
hold, and kept it until the sequence ended::

    reserved   | real tokens ........ | later: tokens to come | never used ............... |
               0        num_computed_tokens      num_computed_tokens at the end     reservation

The simulation is kind to it: memory can always be filled up without gaps, as if whatever lies in it could be moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.errors import CapacityError


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request of a load: tokens of its prompt and of its answer, at least 1 each."""

    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def most_held(self) -> int:
        """Tokens whose keys and values are held at the end: the last token of an answer is never computed."""
        return self.num_tokens - 1


Reserve = Callable[[Lengths], int]
"""Tokens that a contiguous cache sets aside for a request: never fewer than the request has."""


@dataclass(frozen=True, slots=True)
class Held:
    """What KV memory holds after a step, once the sequences that it finished have left; in tokens.

    ``num_tokens`` are real. ``num_later`` are reserved for tokens that will come, ``num_unused`` for none.
    ``num_running`` sequences hold them, ``num_waiting`` hold nothing.
    """

    num_running: int
    num_waiting: int
    num_tokens: int
    num_later: int
    num_unused: int

    @property
    def num_reserved(self) -> int:
        return self.num_tokens + self.num_later + self.num_unused


def reserve_most(max_model_len: int) -> Reserve:
    """The most that any request may have, for every request: what an engine must do that cannot know better."""
    return lambda request: max_model_len


def reserve_power_of_two(max_model_len: int) -> Reserve:
    """The least power of two that the request fits into, as if its length were guessed that well."""
    return lambda request: min(1 << (request.num_tokens - 1).bit_length(), max_model_len)


def reserve_exactly(request: Lengths) -> int:
    """What the request comes to, as if an oracle knew the length of its answer."""
    return request.num_tokens


def simulate(
    load: Sequence[Lengths], reserve: Reserve, *, memory_tokens: int, max_num_batched_tokens: int
) -> list[Held]:
    """Step through a load that waits in full at the start, and say what each step leaves in memory.

    The rules are the engine's: every running sequence gets its missing tokens, decodes first and then prompts, oldest
    first; what is left of ``max_num_batched_tokens`` admits those that wait, strictly in order, as long as their
    reservations fit into ``memory_tokens``. A sequence whose tokens are all computed gets its next one.

    Raises:
        CapacityError: a request's reservation alone is more than the memory.
    """
    most = max(map(reserve, load), default=0)
    if most > memory_tokens:
        raise CapacityError(
            f"KV memory of {memory_tokens:,} tokens cannot hold one contiguous sequence of {most:,} tokens; raise "
            "kv_memory or lower max_model_len"
        )
    waiting = deque(load)
    running: list[_Sequence] = []
    steps: list[Held] = []
    while waiting or running:
        budget = _continue(running, max_num_batched_tokens)
        free = memory_tokens - sum(sequence.reserved for sequence in running)
        # Every running decode fits the budget of every step, so no more may run than it has tokens.
        while waiting and budget > 0 and len(running) < max_num_batched_tokens and reserve(waiting[0]) <= free:
            sequence = _Sequence(waiting[0], reserve(waiting.popleft()))
            free -= sequence.reserved
            budget -= sequence.compute(budget)
            running.append(sequence)
        running = [sequence for sequence in running if not sequence.is_finished]
        steps.append(_held(running, len(waiting)))
    return steps


@dataclass(slots=True)
class _Sequence:
    request: Lengths
    reserved: int
    num_computed_tokens: int = 0
    num_drawn_tokens: int = 0

    @property
    def num_missing_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.num_drawn_tokens - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.num_drawn_tokens == self.request.num_output_tokens

    def compute(self, most: int) -> int:
        """Mutates: computes missing tokens, ``most`` at most, and draws the next if none is left. How many."""
        count = min(self.num_missing_tokens, most)
        self.num_computed_tokens += count
        if self.num_missing_tokens == 0:
            self.num_drawn_tokens += 1
        return count


def _continue(running: list[_Sequence], budget: int) -> int:
    """Mutates: one step of all that run. Returns the budget that is left."""
    decodes = sum(sequence.num_missing_tokens == 1 for sequence in running)
    for sequence in running:
        is_decode = sequence.num_missing_tokens == 1
        decodes -= is_decode
        budget -= sequence.compute(1 if is_decode else budget - decodes)
    return budget


def _held(running: list[_Sequence], num_waiting: int) -> Held:
    num_tokens = sum(sequence.num_computed_tokens for sequence in running)
    most_held = sum(sequence.request.most_held for sequence in running)
    reserved = sum(sequence.reserved for sequence in running)
    return Held(len(running), num_waiting, num_tokens, most_held - num_tokens, reserved - most_held)
