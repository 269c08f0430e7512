"""SequenceBlocks: the blocks one sequence holds, and the names of those it could share."""

from __future__ import annotations

from octavo.kv.block import Block
from octavo.kv.hashing import BlockHash, hash_block


class SequenceBlocks:
    """One sequence's block tables. Only the :class:`~octavo.kv.manager.KVCacheManager` changes them.

    Attributes:
        tokens: the request's live list, prompt and output. It only grows.
        root: the parent hash of the first block.
        read_cache: whether values computed by others may be used.
        write_cache: whether others may use the values computed here.
        blocks: ``blocks[group][i]`` holds positions ``i * block_size`` up to ``(i + 1) * block_size``. Where a window
            has passed, the null block stands.
        block_ids: the ids of ``blocks``, kept in step: the block tables as the native core reads them.
        table_version: raised when an entry that was there before changes (copy on write, exchange for a
            published block, a window that passes, release), so that a copy of the table must be made anew. Appending
            does not.
        hashes: hashes of the first full blocks of ``tokens``, as many as were needed so far.
        num_computed: tokens whose keys and values are in the blocks.
        num_published: full blocks, from the first on, that were hits or have been offered to the index.
        num_announced: full blocks, from the first on, that were hits or that others may wait for.
    """

    __slots__ = (
        "block_ids",
        "blocks",
        "hashes",
        "num_announced",
        "num_computed",
        "num_published",
        "read_cache",
        "root",
        "table_version",
        "tokens",
        "write_cache",
    )

    def __init__(
        self, tokens: list[int], root: BlockHash, *, num_groups: int, read_cache: bool, write_cache: bool
    ) -> None:
        self.tokens = tokens
        self.root = root
        self.read_cache = read_cache
        self.write_cache = write_cache
        self.blocks: tuple[list[Block], ...] = tuple([] for _ in range(num_groups))
        self.block_ids: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.table_version = 0
        self.hashes: list[BlockHash] = []
        self.num_computed = 0
        self.num_published = 0
        self.num_announced = 0

    @property
    def num_blocks(self) -> int:
        """Entries of the block table of each group, those that a window has passed included."""
        return len(self.block_ids[0])

    def hash_blocks(self, count: int, block_size: int) -> None:
        """Mutates: know the hashes of the first ``count`` full blocks. Each is computed once."""
        for index in range(len(self.hashes), count):
            tokens = self.tokens[index * block_size : (index + 1) * block_size]
            self.hashes.append(hash_block(self.parent_hash(index), tokens))

    def parent_hash(self, index: int) -> BlockHash:
        """The hash that block ``index`` is chained to. Read-only; the block before must have been hashed."""
        return self.hashes[index - 1] if index else self.root

    def append_blocks(self, group: int, blocks: list[Block]) -> None:
        """Mutates: the table of ``group`` grows by ``blocks``."""
        self.blocks[group].extend(blocks)
        self.block_ids[group].extend([block.block_id for block in blocks])

    def replace_block(self, group: int, index: int, block: Block) -> None:
        """Mutates: entry ``index`` of the table of ``group`` is ``block`` from now on."""
        self.blocks[group][index] = block
        self.block_ids[group][index] = block.block_id
        self.table_version += 1

    def drop_blocks(self, group: int, start: int, end: int, null_block: Block) -> list[Block]:
        """Mutates: entries ``start`` to ``end`` of the table of ``group`` are the null block from now on. Returns what
        stood there.
        """
        dropped = self.blocks[group][start:end]
        self.blocks[group][start:end] = [null_block] * len(dropped)
        self.block_ids[group][start:end] = [null_block.block_id] * len(dropped)
        self.table_version += 1
        return dropped

    def cut_blocks(self, count: int) -> list[Block]:
        """Mutates: the table of each group has ``count`` entries from now on. Returns what stood behind, last first."""
        rows = reversed([*zip(*(blocks[count:] for blocks in self.blocks), strict=True)])
        cut = [block for row in rows for block in row]
        for blocks, block_ids in zip(self.blocks, self.block_ids, strict=True):
            del blocks[count:], block_ids[count:]
        self.table_version += 1
        return cut

    def clear(self) -> None:
        """Mutates: the sequence holds nothing and has computed nothing. Known hashes stay known."""
        for blocks, block_ids in zip(self.blocks, self.block_ids, strict=True):
            blocks.clear()
            block_ids.clear()
        self.table_version += 1
        self.num_computed = self.num_published = self.num_announced = 0
