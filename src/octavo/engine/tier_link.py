"""TierLink: between the KV pool and a tier. Blocks go down as they are published, and up when a prompt needs them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from octavo.engine.load_cost import LoadCost
from octavo.engine.request import Request, RequestStatus
from octavo.engine.scheduler import Scheduler, SchedulerOutput
from octavo.engine.stats import TierReport
from octavo.kv.block import Block
from octavo.kv.hashing import BlockHash, hash_block
from octavo.kv.hit import PrefixHit
from octavo.kv.loading import LoadTarget, Offload
from octavo.kv.manager import KVCacheManager
from octavo.kv.sequence import SequenceBlocks
from octavo.tiers.base import BlockContent, BlockKey, Load, Origin, Result, Tier, tenant_digest

_MAX_ORIGINS = 4096
"""Roots whose salt is remembered: blocks of one that is not are not stored until it is asked for again."""


@dataclass(slots=True)
class _Times:
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class _UnderWay:
    request: Request
    targets: list[LoadTarget]
    load: Load
    times: _Times


class TierLink(Offload):
    """Moves blocks for one engine, on its thread. The tier's own threads do what takes long.

    A block is copied to the tier's queue when it is published, once its step was computed. When a request begins or
    ends, what it used and the tier does not have is offered again: what a full queue dropped is made up for.

    Args:
        block_bytes: the pool's bytes of a block, by its id; written to by loads.
        model: root of the namespace without a salt.
        label: the model and its KV format, for people.
    """

    def __init__(
        self, tier: Tier, block_bytes: Callable[[int], memoryview], *, model: bytes, label: str, cost: LoadCost
    ) -> None:
        self.tier = tier
        self.cost = cost
        self.num_loaded_tokens = 0
        """Tokens of prompts that were read from the tier and not computed."""
        self._block_bytes = block_bytes
        self._model = model
        self._label = label
        self._origins: OrderedDict[BlockHash, Origin] = OrderedDict()
        self._kv: KVCacheManager
        self._held_back: list[tuple[Request, list[LoadTarget]]] = []
        self._under_way: list[_UnderWay] = []
        self._ended = threading.Event()

    def attach(self, kv: KVCacheManager) -> None:
        """The blocks are those of ``kv``, which was given this link as its ``offload``."""
        self._kv = kv

    def note_root(self, root: BlockHash, cache_salt: bytes) -> None:
        """Blocks under ``root`` are those of ``cache_salt``."""
        if root not in self._origins:
            self._origins[root] = Origin(root, self._model, tenant_digest(cache_salt), self._label)
        self._origins.move_to_end(root)
        if len(self._origins) > _MAX_ORIGINS:
            self._origins.popitem(last=False)

    def in_other_formats(self, token_ids: Sequence[int], cache_salt: bytes) -> list[tuple[str, int]]:
        """What the tier has of ``token_ids`` and this engine cannot use: the label of a model and KV format, and of how
        many tokens, in whole blocks. Any thread may call it.
        """
        found = []
        for origin, block_size in self.tier.foreign(tenant_digest(cache_salt)):
            parent, num_tokens = BlockHash(origin.root), 0
            while num_tokens + block_size <= len(token_ids):
                parent = hash_block(parent, token_ids[num_tokens : num_tokens + block_size])
                if not self._is_stored(parent, 0):
                    break
                num_tokens += block_size
            if num_tokens:
                found.append((origin.label, num_tokens))
        return found

    def report(self) -> TierReport:
        return TierReport(self.tier.stats(), self.tier.gauges(), self.num_loaded_tokens)

    # Down --------------------------------------------------------------------------------------------

    def published(self, root: BlockHash, block: Block) -> None:
        origin = self._origins.get(root)
        if origin is None:
            return
        store = self.tier.prepare_store(_content(block, origin))
        if store is not None:
            store.memory[:] = self._block_bytes(block.block_id)
            self.tier.complete_store(store)

    def used(self, root: BlockHash, blocks: Sequence[Block]) -> None:
        for block in self._missing(blocks):
            self.published(root, block)

    def offer(self, root: BlockHash, tokens: Sequence[int]) -> int:
        """Offer what is cached of ``tokens``. Returns how many blocks of that found no room in the queue."""
        blocks = self._kv.cached_blocks(root, tokens)
        self.used(root, blocks)
        return len(self._missing(blocks))

    def num_stored(self, seq: SequenceBlocks) -> int:
        """How many tokens of ``seq`` are in the tier, from the first on, its last one left out."""
        seq.hash_blocks((len(seq.tokens) - 1) // self._kv.block_size, self._kv.block_size)
        nothing = PrefixHit(0, tuple([] for _ in range(self._kv.num_groups)), [], False)
        return self._kv.longest_loadable(seq, nothing, self._is_stored) * self._kv.block_size

    # Up ----------------------------------------------------------------------------------------------

    def num_blocks_to_load(self, seq: SequenceBlocks, hit: PrefixHit) -> int:
        if seq.root not in self._origins:
            return 0
        start = len(hit.blocks[0])
        end = self._kv.longest_loadable(seq, hit, self._is_stored)
        num_tokens = end * self._kv.block_size - hit.num_tokens
        if end > start and self.cost.prefers_load((end - start) * self._kv.num_groups, num_tokens):
            return end
        return 0

    def lookup(self, root: BlockHash, tokens: list[int]) -> int:
        """As :meth:`KVCacheManager.lookup`, what would be loaded included."""
        seq = self._kv.new_sequence(tokens, root)
        hit = self._kv.find_hit(seq)
        return max(hit.num_tokens, self.num_blocks_to_load(seq, hit) * self._kv.block_size)

    def begin(self, scheduled: SchedulerOutput) -> None:
        """Begin to read what was scheduled; where a copy of this step reads or writes, not before the next one."""
        held_back, self._held_back = self._held_back, []
        if not held_back and not scheduled.loads:
            return
        copied = set(chain.from_iterable(scheduled.copies))
        for request, targets in held_back + scheduled.loads:
            if copied.isdisjoint(target.block_id for target in targets):
                self._begin(request, targets)
            else:
                self._held_back.append((request, targets))

    def settle(self, scheduler: Scheduler) -> None:
        """Tell ``scheduler`` of the loads that have ended."""
        self._ended.clear()
        for each in list(self._under_way):
            if each.request.status is RequestStatus.FINISHED:
                each.load.cancel()
            results = self.tier.complete_load(each.load)
            if Result.PENDING in results:
                continue
            self._under_way.remove(each)
            loaded = {
                target.place for target, result in zip(each.targets, results, strict=True) if result is Result.HIT
            }
            if len(loaded) == len(results) and each.times.ended is not None:
                self.cost.observe(len(results), each.times.ended - each.times.began)
            before = each.request.blocks.num_computed
            scheduler.finish_loading(each.request, loaded)
            self.num_loaded_tokens += max(each.request.num_computed_tokens - before, 0)

    def wait(self, seconds: float) -> None:
        """Until a load has ended, or so long."""
        if self._under_way:
            self._ended.wait(seconds)

    def _begin(self, request: Request, targets: list[LoadTarget]) -> None:
        origin, seq = self._origins[request.blocks.root], request.blocks
        size = self._kv.block_size
        blocks = []
        for (group, index), block_id in targets:
            token_ids = tuple(seq.tokens[index * size : (index + 1) * size])
            content = BlockContent(BlockKey(seq.hashes[index], group), origin, seq.parent_hash(index), token_ids)
            blocks.append((content, self._block_bytes(block_id)))
        times = _Times(time.monotonic())

        def done() -> None:
            times.ended = time.monotonic()
            self._ended.set()

        self._under_way.append(_UnderWay(request, targets, self.tier.prepare_load(blocks, done), times))

    def _is_stored(self, block_hash: BlockHash, group: int) -> bool:
        return BlockKey(block_hash, group) in self.tier

    def _missing(self, blocks: Sequence[Block]) -> list[Block]:
        by_key = {_key(block): block for block in blocks}
        return [by_key[key] for key in self.tier.touch(list(by_key))]


def _key(block: Block) -> BlockKey:
    assert block.block_hash is not None, f"{block!r} is not published"
    return BlockKey(block.block_hash, block.group)


def _content(block: Block, origin: Origin) -> BlockContent:
    assert block.parent_hash is not None, f"{block!r} is not published"
    return BlockContent(_key(block), origin, block.parent_hash, block.token_ids)
