"""Block: who holds a block and what it contains. FreeBlockQueue: blocks nobody holds, in order of reuse."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.kv.hashing import BlockHash

NULL_BLOCK_ID = 0
"""The null block: always zero, never handed out, never freed. Copying it zeroes the target."""


class BlockError(RuntimeError):
    """The bookkeeping of blocks was used wrongly or is broken: a bug in Octavo, not in a request."""


class Block:
    """One block of one layer group's keys and values: its bookkeeping, not its bytes.

    ``ref_count`` counts the block tables it stands in. ``block_hash``, ``parent_hash``, ``token_ids`` and
    ``group`` say what a published block contains; an unpublished one has ``block_hash`` None. A block may be
    published while it is held, and before it is full (a tail, fewer than block_size tokens): whoever holds it goes on
    filling the slots beyond. A published slot is never written.

    ``level`` and ``keep_until`` say when it is evicted once nobody holds it, see
    :class:`~octavo.kv.retention.FreeBlocks`; ``queue`` is where it stands until then.
    """

    __slots__ = (
        "block_hash",
        "block_id",
        "group",
        "keep_until",
        "level",
        "next",
        "parent_hash",
        "previous",
        "queue",
        "ref_count",
        "token_ids",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: BlockHash | None = None
        self.parent_hash: BlockHash | None = None
        self.token_ids: tuple[int, ...] = ()
        self.group = 0
        self.level = 0
        self.keep_until = 0.0
        self.queue: FreeBlockQueue | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def set_content(
        self, block_hash: BlockHash, parent_hash: BlockHash, token_ids: tuple[int, ...], group: int
    ) -> None:
        """Mutates: names the content, once until :meth:`reset_content`."""
        if self.block_hash is not None:
            raise BlockError(f"{self!r} already has a hash; reset its content before publishing another")
        self.block_hash = block_hash
        self.parent_hash = parent_hash
        self.token_ids = token_ids
        self.group = group

    def reset_content(self) -> None:
        """Mutates: forgets what the block contains."""
        self.block_hash = self.parent_hash = None
        self.token_ids = ()
        self.group = 0

    def __repr__(self) -> str:
        name = "unpublished" if self.block_hash is None else self.block_hash.hex()[:12]
        return f"Block({self.block_id}, ref_count={self.ref_count}, {name}, {len(self.token_ids)} tokens)"


class FreeBlockQueue:
    """Blocks nobody holds, first to be reused in front. Every method but ``len`` and iteration mutates.

    A doubly linked list and not a deque, because a hit takes its blocks out of the middle and that must be
    O(1). The links live in the blocks, so the queue allocates nothing; two sentinels stand at the ends, so no
    method asks whether it is at one. A block knows the one queue it is in.
    """

    __slots__ = ("_back", "_front", "_length")

    def __init__(self) -> None:
        self._front, self._back = Block(-1), Block(-2)
        self._front.next, self._back.previous = self._back, self._front
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """Blocks in order of reuse. Do not change the queue while iterating."""
        block = self._front.next
        while block is not None and block is not self._back:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Put ``block`` last in order of reuse."""
        back = self._back
        previous = back.previous
        if block.queue is not None or previous is None:
            raise BlockError(f"{block!r} is in a queue of free blocks already")
        block.previous, block.next, block.queue = previous, back, self
        previous.next = back.previous = block
        self._length += 1

    def prepend(self, block: Block) -> None:
        """Put ``block`` first in order of reuse."""
        front = self._front
        following = front.next
        if block.queue is not None or following is None:
            raise BlockError(f"{block!r} is in a queue of free blocks already")
        block.previous, block.next, block.queue = front, following, self
        front.next = following.previous = block
        self._length += 1

    def popleft(self) -> Block:
        """Take out the first block in order of reuse."""
        if not self._length:
            raise BlockError("no free block is left; ask for the number of free blocks first")
        return self.take(1)[0]

    def take(self, count: int) -> list[Block]:
        """Take out the first ``count`` blocks in order of reuse, or all if there are fewer."""
        taken: list[Block] = []
        front, block = self._front, self._front.next
        for _ in range(min(count, self._length)):
            assert block is not None
            following = block.next
            block.previous = block.next = block.queue = None
            taken.append(block)
            block = following
        assert block is not None
        front.next, block.previous = block, front
        self._length -= len(taken)
        return taken

    def remove(self, block: Block) -> None:
        """Take ``block`` out from wherever it stands."""
        previous, following = block.previous, block.next
        if block.queue is not self or previous is None or following is None:
            raise BlockError(f"{block!r} is not in this queue of free blocks")
        previous.next, following.previous = following, previous
        block.previous = block.next = block.queue = None
        self._length -= 1
