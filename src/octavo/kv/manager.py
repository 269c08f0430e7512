"""KVCacheManager: the scheduler's only door to the blocks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain
from operator import itemgetter

from octavo.kv.allocator import Allocation, Allocator
from octavo.kv.announced import Announced
from octavo.kv.block import Block, BlockError
from octavo.kv.hashing import BlockHash
from octavo.kv.hit import PrefixHit, check_current
from octavo.kv.invariants import check_sequence
from octavo.kv.loading import LoadTarget, Offload, blocks_to_load, longest_prefix
from octavo.kv.pool import BlockPool
from octavo.kv.prefix import PrefixIndex
from octavo.kv.publishing import Publisher
from octavo.kv.residency import Unwatched, Watcher
from octavo.kv.sequence import SequenceBlocks
from octavo.kv.windows import blocks_held, first_block


class KVCacheManager:
    """Gives sequences their blocks and shares what was computed.

    A sequence is made (:meth:`new_sequence`), admitted with what is cached (:meth:`find_hit`, :meth:`admit`),
    and then per step extended before its tokens are computed and published after. :meth:`release` ends it, or
    preempts it: it may be admitted again. A sequence that was admitted with a hit of 10 tokens and room for
    18, of which it computes 6 now (block_size 4, one character for a token)::

        |oooo|oooo|tt..|....|____|      o  hit.blocks, shared       .  to compute
         hit.num_tokens                 t  copied from hit.tail     _  free slots
         <---------->                   fresh blocks: of t, . and _; zeroed, or copied to

    A copied block may go on with values of other tokens. They are finite, and each is overwritten before anything
    attends to its position, so a copy computes the bits that a zeroed block does.

    All copies of one step are executed before its first token is computed, in the order in which they were
    handed out. That order is what makes reuse within a step safe: when a block is freed (by preemption, or as
    the source of a copy) and handed out again in the same step, the copy that reads it was handed out before
    the one that overwrites it. So the engine concatenates allocations as it gets them, reorders none, and
    drops none, not even those of a sequence it preempts in the same step.

    Args:
        num_blocks: all there are, the null block included.
        group_windows: of each layer group the keys that a query of its layers sees; None for all. A group with a window
            holds the blocks that queries to come still see, and the null block before them.
        watcher: told what becomes of published blocks.
        offload: told which blocks could be kept elsewhere. What it kept is found by :meth:`longest_loadable`.
        retention_budget: share of the blocks, from 0 to 1, that may be retained while nobody holds them.
        clock: of the times until which they are, in seconds; it never goes back.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        group_windows: Sequence[int | None] = (None,),
        enable_prefix_caching: bool = True,
        watcher: Watcher | None = None,
        offload: Offload | None = None,
        retention_budget: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.block_size = block_size
        self.num_groups = len(group_windows)
        self.enable_prefix_caching = enable_prefix_caching
        self._windows = tuple(group_windows)
        self._windowed = [
            (window, [group for group, own in enumerate(group_windows) if own == window])
            for window in dict.fromkeys(group_windows)
            if window is not None
        ]
        self._index = PrefixIndex(block_size=block_size, group_windows=group_windows)
        watcher = Unwatched() if watcher is None else watcher
        self._pool = BlockPool(num_blocks, self._index, watcher, retention_budget=retention_budget, clock=clock)
        self._holders: set[SequenceBlocks] = set()
        self._announced = Announced()
        self._allocator = Allocator(self._index, self._pool)
        self._offload = offload
        self._publisher = Publisher(
            self._index,
            self._pool,
            self._announced,
            watcher,
            Offload() if offload is None else offload,
            block_size=block_size,
        )

    def new_sequence(
        self, tokens: list[int], root: BlockHash, *, read_cache: bool = True, write_cache: bool = True
    ) -> SequenceBlocks:
        """A sequence that holds nothing yet. Mutates nothing.

        ``tokens`` is the request's live list: the engine appends to it, and it is read here, never copied.
        ``read_cache=False`` never uses values of others; ``write_cache=False`` never lets others use its own.
        """
        caching = self.enable_prefix_caching
        return SequenceBlocks(
            tokens,
            root,
            num_groups=self.num_groups,
            read_cache=read_cache and caching,
            write_cache=write_cache and caching,
        )

    def find_hit(self, seq: SequenceBlocks) -> PrefixHit:
        """The longest cached prefix of ``seq``, never its last token. Read-only (``seq`` learns hashes).

        It ends at the first token that no published block holds, inside a block where need be. Of a block that would
        make the hit complete all but the last token count: that one is computed again, for its logits.
        """
        if not seq.read_cache:
            return PrefixHit(0, tuple([] for _ in range(self.num_groups)), [], False)
        usable = max(len(seq.tokens) - 1, 0)
        usable_blocks = usable // self.block_size
        seq.hash_blocks(usable_blocks, self.block_size)
        num_tokens, runs, tail = self._index.longest_hit(seq.root, seq.hashes, seq.tokens, usable)
        index = num_tokens // self.block_size
        blocks = tuple([self._pool.null_block] * (index - len(run)) + run for run in runs)
        pending = index < usable_blocks and seq.hashes[index] in self._announced
        return PrefixHit(num_tokens, blocks, tail, pending)

    def lookup(self, root: BlockHash, tokens: list[int]) -> int:
        """How many of ``tokens`` a request for them would find now, at most all but the last. Read-only."""
        return self.find_hit(self.new_sequence(tokens, root)).num_tokens

    def admit(self, seq: SequenceBlocks, hit: PrefixHit, num_tokens: int) -> Allocation | None:
        """Mutates: ``seq`` holds its hit and has room for ``num_tokens`` tokens in all, hit included.

        None: it does not fit, and nothing changed. The full prompt blocks it is about to compute are
        announced, so that others may wait for them; only admitted sequences announce, so no two can wait for
        each other.

        Raises:
            BlockError: ``seq`` is admitted already, the hit is out of date, or no token is left to compute.
        """
        self._check_admissible(seq, hit, num_tokens)
        missing = self._blocks_for(num_tokens) - len(hit.blocks[0])
        allocation = self._allocator.hold_hit(seq, hit, missing)
        if allocation is None:
            return None
        self._begin_holding(seq, hit)
        return allocation

    def longest_loadable(self, seq: SequenceBlocks, hit: PrefixHit, is_stored: Callable[[BlockHash, int], bool]) -> int:
        """How many full blocks of ``seq`` the hit could be continued to, never its last token. Read-only.

        ``is_stored``: whether the block of this hash and group can be had from elsewhere.
        """
        most = max(len(seq.tokens) - 1, 0) // self.block_size
        if not seq.read_cache:
            return len(hit.blocks[0])
        return longest_prefix(
            self._windows,
            self.block_size,
            len(hit.blocks[0]),
            most,
            lambda group, index: is_stored(seq.hashes[index], group),
        )

    def begin_load(self, seq: SequenceBlocks, hit: PrefixHit, num_blocks: int) -> list[LoadTarget] | None:
        """Mutates: ``seq`` holds the full blocks of its hit, and blocks to read others into, ``num_blocks`` in all.

        None: it does not fit, and nothing changed. What is to be read comes with the first positions first. Nobody may
        touch these blocks until it has been read; then comes :meth:`finish_load`, whatever became of it. They are
        announced meanwhile, as if they were computed.

        Raises:
            BlockError: ``seq`` is admitted already, or the hit is out of date.
        """
        num_hit_blocks = len(hit.blocks[0])
        self._check_admissible(seq, hit, num_blocks * self.block_size)
        if hit.tail:
            # With windows, whole blocks alone may need one that the longer hit does not.
            found = self._index.longest_hit(seq.root, seq.hashes, seq.tokens, num_hit_blocks * self.block_size)
            if found.num_tokens < num_hit_blocks * self.block_size:
                return None
            runs = ([self._pool.null_block] * (num_hit_blocks - len(run)) + run for run in found.blocks)
            hit = PrefixHit(found.num_tokens, tuple(runs), [], False)
        if self._allocator.hold_hit(seq, hit, num_blocks - num_hit_blocks) is None:
            return None
        # Its copies would zero the new blocks. They are written whole instead, or given back.
        self._begin_holding(seq, hit)
        return [
            LoadTarget((group, index), seq.block_ids[group][index])
            for group, index in blocks_to_load(self._windows, self.block_size, num_hit_blocks, num_blocks)
        ]

    def finish_load(self, seq: SequenceBlocks, loaded: Set[tuple[int, int]]) -> None:
        """Mutates: ``seq`` has computed its hit and, behind it, as much as was ``loaded``: the places of these blocks.

        What was read behind a gap is given back. The rest is published as if it had been computed.

        Raises:
            BlockError: ``seq`` was not admitted.
        """
        self._check_holds(seq)
        before, start = seq.num_computed, seq.num_published
        end = longest_prefix(
            self._windows, self.block_size, start, seq.num_blocks, lambda group, index: (group, index) in loaded
        )
        self._pool.free(seq.cut_blocks(end))
        seq.num_computed = end * self.block_size
        if self._windowed:
            self._drop_passed(seq, before)
        if seq.write_cache:
            self._publisher.publish_full_blocks(seq)

    def extend(self, seq: SequenceBlocks, num_tokens: int) -> Allocation | None:
        """Mutates: ``seq`` has room for ``num_tokens`` tokens in all and owns the block it writes to next.

        A block shared since a fork is copied (copy on write). None: it does not fit, and nothing changed.

        Raises:
            BlockError: ``seq`` was not admitted.
        """
        # Only the block of the next position can be shared and still be written: a fork shares no later one.
        index = seq.num_computed // self.block_size
        shared = [
            group for group, blocks in enumerate(seq.blocks) if index < len(blocks) and blocks[index].ref_count > 1
        ]
        missing = self._blocks_for(num_tokens) - len(seq.block_ids[0])
        if missing <= 0 and not shared:
            return Allocation([])
        self._check_holds(seq)
        return self._allocator.grow(seq, max(missing, 0), index, shared)

    def publish(self, seq: SequenceBlocks, num_computed_tokens: int, *, publish_tail: bool = False) -> None:
        """Mutates: ``num_computed_tokens`` tokens of ``seq`` are computed; others may share its full blocks.

        ``publish_tail`` lets others copy the computed tokens beyond the last full block too; ``seq`` goes on filling
        it. Meant for where a prompt ends: it costs as much as a full block.

        Call it after the values were computed, never before. Where somebody else published the same content
        first, ``seq`` holds that block from now on and gives up its own: their bits are equal, and memory
        holds them once. Then it gives back what its windows have passed; published, that is found until evicted.

        Raises:
            BlockError: ``seq`` was not admitted.
        """
        self._check_holds(seq)
        before, seq.num_computed = seq.num_computed, num_computed_tokens
        if seq.write_cache and num_computed_tokens >= (seq.num_published + 1) * self.block_size:
            self._publisher.publish_full_blocks(seq)
        if publish_tail and seq.write_cache:
            self._publisher.publish_tail(seq)
        if self._windowed:
            self._drop_passed(seq, before)

    def fork(self, parent: SequenceBlocks, tokens: list[int]) -> SequenceBlocks:
        """Mutates: a sequence that shares every computed block of ``parent``, the partly filled one included.

        ``tokens`` is the child's own live list and begins with ``parent``'s computed tokens. Whoever extends
        first copies the partly filled block: with block_size 4 and 6 tokens computed, both hold blocks [7,
        8]; the first to extend to 7 tokens gets copies [(8, 9)] and holds [7, 9]; the other keeps [7, 8] and
        writes to 8. Call it between publishing the parent's last step and its next extend.

        Raises:
            BlockError: ``parent`` was not admitted.
        """
        self._check_holds(parent)
        child = SequenceBlocks(
            tokens,
            parent.root,
            num_groups=self.num_groups,
            read_cache=parent.read_cache,
            write_cache=parent.write_cache,
        )
        child.hashes = parent.hashes[: parent.num_computed // self.block_size]
        child.num_computed = parent.num_computed
        child.num_published = child.num_announced = parent.num_published
        for group, blocks in enumerate(parent.blocks):
            computed = blocks[: self._blocks_for(parent.num_computed)]
            self._pool.touch(self._held(computed))
            child.append_blocks(group, computed)
        self._holders.add(child)
        return child

    def release(self, seq: SequenceBlocks, *, publish_tail: bool) -> None:
        """Mutates: ``seq`` holds nothing any more and may be admitted again. Twice is the same as once.

        ``publish_tail`` lets others copy the computed tokens beyond the last full block. What was published before
        stays: it was computed.
        """
        if seq not in self._holders:
            return
        if self._offload is not None and seq.write_cache:
            self._note_used(seq.root, chain.from_iterable(blocks[: seq.num_published] for blocks in seq.blocks))
        if publish_tail and seq.write_cache:
            self._publisher.publish_tail(seq)
        self.restart(seq)
        self._holders.remove(seq)

    def restart(self, seq: SequenceBlocks) -> None:
        """Mutates: ``seq`` stays admitted and holds nothing; all of its tokens are computed again.

        Raises:
            BlockError: ``seq`` was not admitted.
        """
        self._check_holds(seq)
        self._announced.retract(seq)
        # In reverse, so that the end of the chain, worth nothing without its beginning, is evicted first.
        rows = reversed([*zip(*seq.blocks, strict=True)])
        self._pool.free(self._held(chain.from_iterable(rows)), length=max(seq.num_blocks, 1))
        seq.clear()

    def num_blocks_short(self, seq: SequenceBlocks, num_tokens: int, *, max_step_tokens: int) -> int:
        """Blocks that ``seq`` takes beyond those it holds until it has ``num_tokens`` tokens, if it computes at most
        ``max_step_tokens`` at a time. Read-only.
        """
        short = max(0, self._blocks_for(num_tokens) - seq.num_blocks) * self._windows.count(None)
        for window, groups in self._windowed:
            most = blocks_held(num_tokens, window, block_size=self.block_size, max_step_tokens=max_step_tokens)
            held = seq.num_blocks - first_block(seq.num_computed, window, self.block_size)
            short += max(0, most - held) * len(groups)
        return short

    def retain(self, seq: SequenceBlocks, num_tokens: int, until: float) -> None:
        """Mutates: the blocks with the first ``num_tokens`` tokens of ``seq``, computed, are kept until then.

        Once nobody holds them, others are evicted before them, within the budget. ``until`` is in seconds of the clock
        and shortens nothing. With windows, it is what the query after these tokens sees, passed or not.

        Raises:
            BlockError: ``seq`` was not admitted.
        """
        self._check_holds(seq)
        held = (blocks[: self._blocks_for(num_tokens)] for blocks in seq.blocks)
        self._pool.retain(self._held(chain.from_iterable(held)), until)
        hit = self._find_all(seq.root, seq.tokens[:num_tokens], seq.hashes[: num_tokens // self.block_size])
        self._pool.retain(self._last_first(hit), until)

    def retain_cached(self, root: BlockHash, tokens: Sequence[int], until: float) -> int:
        """Mutates: as :meth:`retain`, for what is cached of ``tokens`` now, held or not. Returns how many tokens."""
        hit = self._find_all(root, tokens)
        self._pool.retain(self._last_first(hit), until)
        return hit.num_tokens

    def release_retained(self, root: BlockHash, tokens: Sequence[int]) -> None:
        """Mutates: what is cached of ``tokens`` is evicted like anything else from now on, whoever retained it."""
        self._pool.release_retained(self._last_first(self._find_all(root, tokens)))

    def reset_prefix_cache(self) -> int:
        """Mutates: every published block that nobody holds is forgotten. Returns how many there were."""
        return self._pool.evict_free()

    @property
    def num_blocks(self) -> int:
        """All blocks, the null block included."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that a hit can find, held ones included."""
        return len(self._index)

    @property
    def num_evictable_blocks(self) -> int:
        """Blocks that a hit can find and nobody holds."""
        return self._pool.num_evictable

    @property
    def num_retained_blocks(self) -> int:
        """Those among them that are kept for longer now. Mutates: whatever was and no longer is becomes ordinary."""
        return self._pool.num_retained

    @property
    def num_referenced_blocks(self) -> int:
        """Blocks that somebody holds. An idle engine has none."""
        return self.num_blocks - 1 - self._pool.num_free

    def check(self) -> None:
        """Raise BlockError, saying which, if any invariant is broken. Read-only; visits every block."""
        self._index.check()
        held = (block.block_id for seq in self._holders for block in self._held(chain.from_iterable(seq.blocks)))
        self._pool.check(Counter(held))
        for seq in self._holders:
            check_sequence(seq, self._windows, self.block_size)
        self._announced.check(self._holders)

    def cached_blocks(self, root: BlockHash, tokens: Sequence[int]) -> list[Block]:
        """The full blocks that are cached of ``tokens``, of all groups. Read-only."""
        return self._held(chain.from_iterable(self._find_all(root, tokens).blocks))

    # Private verbs. Each states what must hold before it; none leaves a change behind when that does not.

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _begin_holding(self, seq: SequenceBlocks, hit: PrefixHit) -> None:
        """Mutates: ``seq`` has the blocks of its hit, and others behind them."""
        seq.num_computed = hit.num_tokens
        seq.num_published = seq.num_announced = len(hit.blocks[0])
        if seq.write_cache:
            self._announced.announce(seq, self.block_size)
        self._holders.add(seq)
        if self._offload is not None and hit.blocks[0]:
            self._note_used(seq.root, chain.from_iterable(hit.blocks))

    def _note_used(self, root: BlockHash, blocks: Iterable[Block]) -> None:
        assert self._offload is not None, "nobody is told"
        self._offload.used(root, [block for block in blocks if len(block.token_ids) == self.block_size])

    def _held(self, blocks: Iterable[Block]) -> list[Block]:
        """Without the null block."""
        null_block = self._pool.null_block
        return [block for block in blocks if block is not null_block]

    def _find_all(self, root: BlockHash, tokens: Sequence[int], hashes: Sequence[BlockHash] = ()) -> PrefixHit:
        """What is cached of ``tokens``, the last one not left out. ``hashes``: of full blocks, as far as known."""
        seq = self.new_sequence([*tokens, 0], root)
        seq.hashes = list(hashes)
        return self.find_hit(seq)

    def _last_first(self, hit: PrefixHit) -> list[Block]:
        """The blocks of ``hit``, the end of the chain in front."""
        return self._held(chain(hit.tail, chain.from_iterable(reversed([*zip(*hit.blocks, strict=True)]))))

    def _drop_passed(self, seq: SequenceBlocks, num_computed: int) -> None:
        """Mutates. The null block stands where windows have passed since ``num_computed`` tokens were computed.

        The first positions, not needed for longest, are freed first, and of all groups together: a hit needs them all.
        """
        passed: list[tuple[int, Block]] = []
        for window, groups in self._windowed:
            start = first_block(num_computed, window, self.block_size)
            end = first_block(seq.num_computed, window, self.block_size)
            if start < end:
                for group in groups:
                    passed += enumerate(seq.drop_blocks(group, start, end, self._pool.null_block), start)
        if passed:
            blocks = [block for _, block in sorted(passed, key=itemgetter(0))]
            self._pool.free(blocks, length=seq.num_blocks)

    def _check_holds(self, seq: SequenceBlocks) -> None:
        if seq not in self._holders:
            raise BlockError("the sequence holds no blocks: admit it first")

    def _check_admissible(self, seq: SequenceBlocks, hit: PrefixHit, num_tokens: int) -> None:
        if seq in self._holders:
            raise BlockError("the sequence holds blocks already: release it before admitting it again")
        if not hit.num_tokens < num_tokens:
            raise BlockError(f"admit needs room for a token beyond the hit of {hit.num_tokens}; got {num_tokens}")
        check_current(hit, seq, self.block_size, self._pool.null_block)
