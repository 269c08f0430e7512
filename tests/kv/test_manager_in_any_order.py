"""KVCacheManager driven in any order, against a model that holds the contents of every block.

The model keeps what the native core would: a list of slots per block. A slot says which token is stored there
and every token before it (which is what a key or value depends on), or None when it is zero. Copies are
executed in order, then the scheduled tokens are written, as one engine step does. What may be hit is worked
out anew from the list of everything published and not evicted: the longest prefix, to the token, of which every
group has what the next query sees, be it the beginning of a block that goes on otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.kv.block import Block
from octavo.kv.hashing import BlockHash
from octavo.kv.hit import PrefixHit
from octavo.kv.loading import LoadTarget, Offload
from octavo.kv.manager import KVCacheManager
from octavo.kv.sequence import SequenceBlocks

ROOTS = (BlockHash(b"a" * 32), BlockHash(b"b" * 32))
MAX_TOKENS = 16

Prefix = tuple[int, BlockHash, tuple[int, ...]]  # group, root, tokens: what a slot or a block depends on
PICK = st.integers(0, 7)
STALE = (-1, ROOTS[0], ())
"""In a slot that was never zeroed nor written."""
WINDOWS: list[list[int | None]] = [
    *([None], [None], [None, None]),
    *([1], [3], [6], [2, 5]),
    *([None, 1], [2, None], [None, 3], [4, None], [None, 9], [5, None, 2], [None, 3, 3]),
]
"""Of each group: full attention, windows alone, and both."""


@dataclass(eq=False)
class Request:
    """One sequence as the engine sees it. ``target``: tokens computed after the step being scheduled."""

    seq: SequenceBlocks
    root: BlockHash
    tokens: list[int]
    read: bool
    write: bool
    running: bool = False
    computed: int = 0
    offered: int = 0  # full blocks that were hits or were published
    announced: int = 0
    target: int | None = None
    targets: list[LoadTarget] | None = None  # while a tier reads


class Tier(Offload):
    """Keeps what a manager says can be kept, and remembers what each hash stands for."""

    def __init__(self, machine: AnyOrder) -> None:
        self.machine = machine
        self.kept: dict[tuple[BlockHash, int], Prefix] = {}
        self.told: set[tuple[BlockHash | None, int]] = set()

    def published(self, root: BlockHash, block: Block) -> None:
        content = self.machine.slots[block.block_id]
        assert block.block_hash is not None and content[-1] is not None
        assert content[-1][:2] == (block.group, root) and content[-1][2][-len(content) :] == block.token_ids
        self.kept[block.block_hash, block.group] = content[-1]
        self.told.add((block.block_hash, block.group))

    def used(self, root: BlockHash, blocks: Sequence[Block]) -> None:
        for block in blocks:
            assert (block.block_hash, block.group) in self.told, "what is used was published, whole, before"


class Watch:
    """Believes what a manager tells its watcher: which published blocks nobody holds, and how many were evicted."""

    def __init__(self) -> None:
        self.idle: set[int] = set()
        self.evictions = 0

    def published(self, block_id: int) -> None:
        assert block_id not in self.idle, "a block is published while it is held"

    def dropped(self, block_id: int) -> None:
        assert block_id not in self.idle
        self.idle.add(block_id)

    def taken(self, block_id: int) -> None:
        self.idle.remove(block_id)

    def evicted(self, block_id: int) -> None:
        self.idle.remove(block_id)
        self.evictions += 1


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 30),
        block_size=st.sampled_from([1, 2, 3, 4, 4]),
        windows=st.sampled_from(WINDOWS),
    )
    def start(self, num_blocks: int, block_size: int, windows: list[int | None]) -> None:
        self.size, self.groups, self.windows = block_size, len(windows), windows
        self.watch, self.evictions = Watch(), 0
        self.now = 0.0
        self.tier = Tier(self)
        self.held_back: list[Request] = []  # nothing is read for them before the copies of this step were executed
        self.manager = KVCacheManager(
            num_blocks=num_blocks,
            block_size=block_size,
            group_windows=windows,
            watcher=self.watch,
            offload=self.tier,
            clock=lambda: self.now,
        )
        self.slots: list[list[Prefix | None]] = [[STALE] * block_size for _ in range(num_blocks)]
        self.slots[0] = [None] * block_size
        self.requests: list[Request] = []
        self.published: dict[int, Prefix] = {}  # block id -> what a hit finds there
        self.copies: list[tuple[int, int]] = []  # of the step that is being scheduled
        self.texts: list[list[int]] = [[0] * MAX_TOKENS]  # token lists seen before, so that prefixes recur

    # What the engine does

    @precondition(lambda self: len(self.requests) < 6)
    @rule(
        text=PICK,
        cut=st.integers(0, MAX_TOKENS) | st.just(MAX_TOKENS),
        more=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        root=st.sampled_from([ROOTS[0], ROOTS[0], ROOTS[0], ROOTS[1]]),
        read=st.sampled_from([True, True, True, False]),
        write=st.sampled_from([True, True, True, False]),
    )
    def new(self, text: int, cut: int, more: list[int], root: BlockHash, read: bool, write: bool) -> None:
        known = self.texts[text % len(self.texts)]
        tokens = (known[:cut] + more)[:MAX_TOKENS]
        seq = self.manager.new_sequence(tokens, root, read_cache=read, write_cache=write)
        self.requests.append(Request(seq, root, tokens, read, write))
        self.remember(tokens)

    @precondition(lambda self: self.requests)
    @rule(
        choices=st.lists(
            st.tuples(PICK, st.integers(1, MAX_TOKENS), st.integers(0, 3), st.integers(0, 1)),
            max_size=6,
        ),
        execute=st.booleans(),
        tails=st.booleans(),
    )
    def schedule(self, choices: list[tuple[int, int, int, int]], execute: bool, tails: bool) -> None:
        """Admit or extend some requests for the step that is being scheduled, and perhaps execute it."""
        for pick, chunk, room, token in choices:
            request = self.pick(self.requests, pick)
            if not request.running:
                self.admit(request, chunk, room)
            elif request.target is None and request.targets is None:
                self.extend(request, chunk, room, token)
        if execute:
            self.execute(tails)

    def admit(self, request: Request, chunk: int, room: int) -> None:
        before = self.state()
        hit = self.manager.find_hit(request.seq)
        assert self.state() == before, "find_hit is read-only"
        self.check_hit(request, hit)
        target = min(hit.num_tokens + chunk, len(request.tokens))
        held = self.held() | {block.block_id for blocks in hit.blocks for block in blocks if block.block_id}
        missing = (self.blocks_for(target + room) - len(hit.blocks[0])) * self.groups
        allocation = self.manager.admit(request.seq, hit, target + room)
        if allocation is None:
            assert len(held) + missing > self.manager.num_blocks - 1, "what fits is admitted"
            assert self.state() == before, "a failed admission changes nothing"
            return
        request.running, request.target = True, target
        request.computed = hit.num_tokens
        request.offered = request.announced = hit.num_tokens // self.size
        if request.write:
            request.announced = len(request.tokens) // self.size
        self.take(allocation.copies)
        for block_id in self.writable_ids(request):  # what was taken over instead of copied is no longer published
            self.published.pop(block_id, None)

    def extend(self, request: Request, chunk: int, room: int, token: int) -> None:
        if request.computed == len(request.tokens):
            request.tokens.append(token)
        target = min(request.computed + chunk, len(request.tokens))
        before = self.state()
        index = request.computed // self.size
        shared = sum(self.holders(ids[index]) > 1 for ids in request.seq.block_ids if index < len(ids))
        missing = max(self.blocks_for(target + room) - request.seq.num_blocks, 0) * self.groups
        allocation = self.manager.extend(request.seq, target + room)
        if allocation is None:
            assert len(self.held()) + shared + missing > self.manager.num_blocks - 1, "what fits is granted"
            assert self.state() == before, "a failed extension changes nothing"
            return
        request.target = target
        self.take(allocation.copies)

    @precondition(lambda self: self.idle_running() and len(self.requests) < 8)
    @rule(pick=PICK, token=st.integers(0, 1))
    def fork(self, pick: int, token: int) -> None:
        parent = self.pick(self.idle_running(), pick)
        tokens = [*parent.tokens[: parent.computed], token]
        child = Request(self.manager.fork(parent.seq, tokens), parent.root, tokens, parent.read, parent.write)
        child.running, child.computed = True, parent.computed
        child.offered = child.announced = parent.offered
        self.requests.append(child)

    @precondition(lambda self: self.idle_running())
    @rule(pick=PICK)
    def restart(self, pick: int) -> None:
        """Compute everything again from the first token on, as a request without any cache does."""
        request = self.pick(self.idle_running(), pick)
        self.manager.restart(request.seq)
        request.computed = request.offered = request.announced = 0

    def execute(self, tails: bool) -> None:
        """Execute the copies, compute what was scheduled, publish it, with what is in blocks that are not full yet."""
        for source, target in self.copies:
            self.slots[target] = list(self.slots[source])
        self.copies = []
        for request in self.held_back:
            self.overwrite(request)
        self.held_back = []
        scheduled = [request for request in self.requests if request.target is not None]
        for request in scheduled:
            for position in range(request.computed, request.target):
                self.write(request, position)
        for request in scheduled:
            request.computed, request.target = request.target, None
            own = [list(ids) for ids in request.seq.block_ids]
            self.manager.publish(request.seq, request.computed, publish_tail=tails)
            self.publish(request, own)
            if tails:
                self.publish_tail(request)
            self.remember(request.tokens)

    @precondition(lambda self: self.tier.kept and any(not request.running for request in self.requests))
    @rule(pick=PICK, lost=st.sets(PICK, max_size=2))
    def begin_load(self, pick: int, lost: set[int]) -> None:
        """What follows a hit is to be read from the tier, which has lost some of what it had."""
        for index in sorted(lost, reverse=True):
            if index < len(self.tier.kept):
                del self.tier.kept[list(self.tier.kept)[index]]
        request = self.pick([request for request in self.requests if not request.running], pick)
        hit = self.manager.find_hit(request.seq)
        before, start = self.state(), len(hit.blocks[0])
        count = self.manager.longest_loadable(request.seq, hit, lambda *key: key in self.tier.kept)
        assert count == self.most_loadable(request, start, set(self.tier.kept.values()))
        if count == start:
            return
        held = self.held() | {block.block_id for blocks in hit.blocks for block in blocks if block.block_id}
        targets = self.manager.begin_load(request.seq, hit, count)
        if targets is None:
            full = len(held) + (count - start) * self.groups > self.manager.num_blocks - 1
            assert full or (hit.tail and self.windows != [None] * self.groups), "what fits is begun"
            assert self.state() == before, "what cannot be loaded changes nothing"
            return
        request.running, request.targets = True, targets
        request.computed = start * self.size
        request.offered = request.announced = start
        if request.write:
            request.announced = len(request.tokens) // self.size
        self.take_ids([block_id for ids in request.seq.block_ids for block_id in ids[start:]])
        if {block_id for copy in self.copies for block_id in copy} & {target.block_id for target in targets}:
            self.held_back.append(request)
        else:
            self.overwrite(request)

    def overwrite(self, request: Request) -> None:
        for target in request.targets or []:
            assert self.holders(target.block_id) == 1 and target.block_id not in self.published
            self.slots[target.block_id] = [STALE] * self.size

    @precondition(lambda self: self.loads())
    @rule(pick=PICK, failed=st.sets(PICK, max_size=3))
    def end_load(self, pick: int, failed: set[int]) -> None:
        """Some of it could not be read: what is before stays, the rest is computed."""
        request = self.pick(self.loads(), pick)
        self.finish_load(request, failed)

    def finish_load(self, request: Request, failed: set[int]) -> None:
        assert request.targets is not None
        read = [target for index, target in enumerate(request.targets) if index not in failed]
        loaded = set()
        for (group, index), block_id in read:
            loaded.add((group, index))
            self.slots[block_id] = [
                self.prefix(group, request, index * self.size + within + 1) for within in range(self.size)
            ]
        start = request.computed // self.size
        end = self.most_loadable(
            request, start, {self.prefix(group, request, (index + 1) * self.size) for group, index in loaded}
        )
        own = [list(ids[: min(end, len(ids))]) for ids in request.seq.block_ids]
        for group, ids in enumerate(own):
            for index in range(min(self.first_needed(group, end * self.size), len(ids))):
                ids[index] = 0
        self.manager.finish_load(request.seq, loaded)
        request.targets = None
        request.computed = request.seq.num_computed
        assert request.computed == end * self.size, "the good prefix is kept"
        self.publish(request, own)

    def most_loadable(self, request: Request, start: int, stored: set[Prefix]) -> int:
        """Of all longer prefixes in whole blocks the longest that lacks nothing; the last token is always computed."""
        if not request.read:
            return start
        return max(
            end
            for end in range(start, (len(request.tokens) - 1) // self.size + 1)
            if all(
                self.prefix(group, request, (index + 1) * self.size) in stored
                for group in range(self.groups)
                for index in range(max(start, self.first_needed(group, end * self.size)), end)
            )
        )

    @precondition(lambda self: len(self.requests) > 1)
    @rule(pick=PICK, tail=st.booleans())
    def finish(self, pick: int, tail: bool) -> None:
        request = self.pick(self.requests, pick)
        self.drop(request, tail)
        self.requests.remove(request)

    @precondition(lambda self: self.idle_running())
    @rule(pick=PICK, share=st.floats(0, 1), seconds=st.sampled_from([1, 9]))
    def retain(self, pick: int, share: float, seconds: float) -> None:
        """Some of what a request has computed is to be kept: nobody finds other content for it, nor less room."""
        request = self.pick(self.idle_running(), pick)
        self.manager.retain(request.seq, round(share * request.computed), self.now + seconds)

    @rule(text=PICK, seconds=st.sampled_from([0, 0, 9]), wait=st.sampled_from([0, 4]))
    def retain_or_release_what_is_cached(self, text: int, seconds: float, wait: float) -> None:
        tokens = self.texts[text % len(self.texts)]
        if seconds:
            assert self.manager.retain_cached(ROOTS[0], tokens, self.now + seconds) >= self.manager.lookup(
                ROOTS[0], tokens
            )
        else:
            self.manager.release_retained(ROOTS[0], tokens)
        self.now += wait

    @precondition(lambda self: self.running())
    @rule(pick=PICK, tail=st.booleans(), more=st.lists(st.integers(0, 1), max_size=4))
    def preempt(self, pick: int, tail: bool, more: list[int]) -> None:
        """Release a request that comes back, with ``more`` tokens: preempted, or the next turn of a chat."""
        request = self.pick(self.running(), pick)
        self.drop(request, tail)
        request.tokens += more

    @precondition(lambda self: len(self.published) > self.manager.num_blocks // 2)
    @rule()
    def reset(self) -> None:
        held = self.held()
        gone = [block_id for block_id in self.published if block_id not in held]
        assert self.manager.reset_prefix_cache() == len(gone)
        for block_id in gone:
            del self.published[block_id]
        self.watch.idle.difference_update(gone)  # forgotten on demand: nobody is told

    def teardown(self) -> None:
        """End every request in whatever state it is."""
        for request in self.requests:
            self.drop(request, tail=True)
        self.manager.check()
        assert self.manager.num_referenced_blocks == 0, "an idle engine holds nothing"

    # What must hold after each of them

    @invariant()
    def bookkeeping_is_sound(self) -> None:
        self.manager.check()
        assert self.manager.num_cached_blocks == len(self.published)
        assert self.manager.num_referenced_blocks == len(self.held())
        idle = self.published.keys() - self.held()
        assert self.manager.num_evictable_blocks == len(idle)
        assert (self.watch.idle, self.watch.evictions) == (idle, self.evictions), "a watcher is told everything, once"

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        slots = [list(block) for block in self.slots]
        for source, target in self.copies:
            slots[target] = list(slots[source])
        assert slots[0] == [None] * self.size, "the null block is zero"
        for request in self.running():
            for group, ids in enumerate(request.seq.block_ids):
                needed = self.first_needed(group, request.computed)
                assert not any(ids[:needed]) and all(ids[needed:]), "blocks are held while the window needs them"
                start = needed * self.size
                read = [slot for block_id in ids for slot in slots[block_id]]
                expected = [self.prefix(group, request, end) for end in range(start + 1, request.computed + 1)]
                assert read[start : request.computed] == expected
                assert request.targets or STALE not in read[request.computed :], (
                    "slots not written yet are zero or hold what was computed"
                )

    @invariant()
    def published_blocks_hold_what_a_hit_expects(self) -> None:
        slots = [list(block) for block in self.slots]
        for source, target in self.copies:
            slots[target] = list(slots[source])
        for block_id, (group, root, tokens) in self.published.items():
            start = (len(tokens) - 1) // self.size * self.size
            expected = [(group, root, tokens[:end]) for end in range(start + 1, len(tokens) + 1)]
            assert slots[block_id][: len(expected)] == expected
            assert STALE not in slots[block_id]

    # The model

    def check_hit(self, request: Request, hit: PrefixHit) -> None:
        usable = len(request.tokens) - 1
        if not request.read:
            assert (hit.num_tokens, hit.pending) == (0, False)
            return
        found = self.found()
        assert hit.num_tokens == max(end for end in range(usable + 1) if self.is_cached(found, request, end))
        full = hit.num_tokens // self.size
        for group, blocks in enumerate(hit.blocks):
            ids, needed = [block.block_id for block in blocks], self.first_needed(group, hit.num_tokens)
            assert len(ids) == full and not any(ids[:needed]) and all(ids[needed:]), "only what the window needs"
        assert len(hit.tail) == (self.groups if hit.num_tokens % self.size else 0)
        following = (full + 1) * self.size
        assert hit.pending == (
            following <= usable and (request.root, tuple(request.tokens[:following])) in self.announced()
        )

    def is_cached(self, found: set[Prefix], request: Request, end: int) -> bool:
        """Whether every group has what the query at position ``end`` sees, and the beginning of a block before it."""
        return all(
            self.prefix(group, request, min(end, (index + 1) * self.size)) in found
            for group in range(self.groups)
            for index in range(self.first_needed(group, end), self.blocks_for(end))
        )

    def found(self) -> set[Prefix]:
        """What is published, cut short after each of a block's tokens."""
        return {
            (group, root, tokens[:end])
            for group, root, tokens in self.published.values()
            for end in range((len(tokens) - 1) // self.size * self.size + 1, len(tokens) + 1)
        }

    def first_needed(self, group: int, num_computed: int) -> int:
        """The block of the first position that the query at position ``num_computed`` sees."""
        window = self.windows[group]
        seen = [p for p in range(num_computed + 1) if window is None or p > num_computed - window]
        return seen[0] // self.size

    def announced(self) -> set[tuple[BlockHash, tuple[int, ...]]]:
        return {
            (request.root, tuple(request.tokens[: (index + 1) * self.size]))
            for request in self.running()
            for index in range(request.offered, request.announced)
        }

    def take(self, copies: list[tuple[int, int]]) -> None:
        self.take_ids([target for _, target in copies])
        self.copies += copies

    def take_ids(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            if self.published.pop(block_id, None) is not None:
                self.evictions += 1

    def write(self, request: Request, position: int) -> None:
        for group, ids in enumerate(request.seq.block_ids):
            block_id = ids[position // self.size]
            assert block_id != 0, "the null block is never written"
            written = len(self.published.get(block_id, STALE)[2])
            assert written <= position, "a published slot is never written"
            assert self.holders(block_id) == 1, "a shared block is never written"
            self.slots[block_id][position % self.size] = self.prefix(group, request, position + 1)

    def publish(self, request: Request, own: list[list[int]]) -> None:
        if not request.write:
            return
        for index in range(request.offered, request.computed // self.size):
            for group, ids in enumerate(own):
                content = self.prefix(group, request, (index + 1) * self.size)
                if ids[index] == 0:
                    continue  # it was not loaded: a window has passed it
                if content not in self.published.values():
                    self.make_findable(ids[index], content)
                    continue
                if ids[index] in self.published and self.published[ids[index]] != content:
                    del self.published[ids[index]]  # as far as it went it was published; somebody else has all of it
                if (block_id := request.seq.block_ids[group][index]) == 0:
                    pass  # a window has passed it already
                elif request.read:
                    assert self.published[block_id] == content, "held once"
                else:
                    assert block_id == ids[index], "only what it computed itself"
        request.offered = request.computed // self.size
        request.announced = max(request.announced, request.offered)

    def drop(self, request: Request, tail: bool) -> None:
        """Release a request in whatever state it is; its copies of this step stay in the list."""
        if request.targets is not None:  # not before nobody writes to its blocks any more
            begun = request not in self.held_back
            if not begun:
                self.held_back.remove(request)
            self.finish_load(request, failed=set() if begun else set(range(len(request.targets))))
        if request.running and tail:
            self.publish_tail(request)
        self.manager.release(request.seq, publish_tail=tail)
        request.running, request.target = False, None
        request.computed = request.offered = request.announced = 0

    def publish_tail(self, request: Request) -> None:
        index = request.computed // self.size
        if not request.write or not request.computed % self.size:
            return
        for group, ids in enumerate(request.seq.block_ids):
            content = self.prefix(group, request, request.computed)
            self.published.pop(ids[index], None)
            if content not in self.found():  # or else another block has all of it
                self.make_findable(ids[index], content)

    def make_findable(self, block_id: int, content: Prefix) -> None:
        """Also instead of what the block was found by before, and of free blocks that begin alike."""
        self.published[block_id] = content
        group, root, tokens = content
        start = (len(tokens) - 1) // self.size * self.size
        needless = {(group, root, tokens[:end]) for end in range(start + 1, len(tokens))}
        for other in [i for i, known in self.published.items() if known in needless and not self.holders(i)]:
            del self.published[other]
            self.watch.idle.remove(other)  # what somebody else has too is not evicted: nobody is told

    def prefix(self, group: int, request: Request, end: int) -> Prefix:
        return group, request.root, tuple(request.tokens[:end])

    def loads(self) -> list[Request]:
        return [request for request in self.requests if request.targets is not None and request not in self.held_back]

    def remember(self, tokens: list[int]) -> None:
        self.texts = [*self.texts[-7:], list(tokens)]

    def running(self) -> list[Request]:
        return [request for request in self.requests if request.running]

    def idle_running(self) -> list[Request]:
        """Running requests that are neither scheduled in this step yet nor loaded still."""
        return [request for request in self.running() if request.target is None and request.targets is None]

    def table_ids(self, request: Request) -> list[int]:
        return [block_id for ids in request.seq.block_ids for block_id in ids if block_id]

    def writable_ids(self, request: Request) -> list[int]:
        """Its blocks that are not full."""
        return [block_id for ids in request.seq.block_ids for block_id in ids[request.computed // self.size :]]

    def held(self) -> set[int]:
        return {block_id for request in self.requests for block_id in self.table_ids(request)}

    def holders(self, block_id: int) -> int:
        return sum(self.table_ids(request).count(block_id) for request in self.requests)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def pick(self, requests: list[Request], pick: int) -> Request:
        return requests[pick % len(requests)]

    def state(self) -> object:
        """Everything a failed call must leave alone."""
        manager = self.manager
        blocks = [(block.ref_count, block.block_hash, block.token_ids) for block in manager._pool._blocks]
        free = [block.block_id for block in manager._pool._free]
        tables = [(request.seq.num_computed, self.table_ids(request)) for request in self.requests]
        return blocks, free, tables, dict(manager._announced._hashes)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
