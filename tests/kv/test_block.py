"""Blocks name their content once; the free queue keeps its order whatever is taken out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.block import Block, BlockError, FreeBlockQueue
from octavo.kv.hashing import BlockHash

HASH = BlockHash(b"h" * 32)
PARENT = BlockHash(b"p" * 32)


def test_a_block_gets_its_hash_once_until_it_is_reset():
    block = Block(1)
    block.set_content(HASH, PARENT, (1, 2), 0)
    with pytest.raises(BlockError, match="already has a hash"):
        block.set_content(HASH, PARENT, (1, 2), 0)
    block.reset_content()
    assert (block.block_hash, block.parent_hash, block.token_ids) == (None, None, ())
    block.set_content(HASH, PARENT, (3, 4), 0)
    assert block.token_ids == (3, 4)


def test_a_block_takes_no_attribute_nobody_declared():
    with pytest.raises(AttributeError):
        Block(1).colour = "red"


@given(st.lists(st.tuples(st.sampled_from(["append", "prepend", "popleft", "take", "remove"]), st.integers(0, 9))))
def test_the_free_queue_behaves_like_a_list(operations):
    blocks = [Block(block_id) for block_id in range(10)]
    queue, model = FreeBlockQueue(), []
    for operation, block_id in operations:
        block = blocks[block_id]
        if operation == "popleft":
            if model:
                assert queue.popleft() is model.pop(0)
        elif operation == "take":
            taken = model[: block_id // 2]
            assert queue.take(block_id // 2) == taken
            del model[: len(taken)]
        elif operation == "remove":
            if block in model:
                queue.remove(block)
                model.remove(block)
        elif block not in model:
            getattr(queue, operation)(block)
            model.insert(0 if operation == "prepend" else len(model), block)
        assert list(queue) == model
        assert len(queue) == len(model)


def test_the_free_queue_refuses_what_would_break_its_links():
    queue, block = FreeBlockQueue(), Block(1)
    with pytest.raises(BlockError, match="no free block"):
        queue.popleft()
    with pytest.raises(BlockError, match="not in this queue"):
        queue.remove(block)
    queue.append(block)
    with pytest.raises(BlockError, match="already"):
        queue.append(block)
    with pytest.raises(BlockError, match="already"):
        queue.prepend(block)
    with pytest.raises(BlockError, match="not in this queue"):
        FreeBlockQueue().remove(block)
    assert list(queue) == [block]
