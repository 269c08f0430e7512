"""Contents keep blocks in the order of their last use, whatever happens."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tier_blocks import origin

from octavo.tiers.base import BlockKey
from octavo.tiers.contents import Contents, Place, StoredBlock

KEYS = st.integers(0, 8)
SIZES = (4096, 8192)


class AnyOrder(RuleBasedStateMachine):
    """Against a list in the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.contents, self.now = Contents(), 0.0
        self.model: list[StoredBlock] = []

    def find(self, key: BlockKey) -> StoredBlock | None:
        return next((block for block in self.model if block.key == key), None)

    @rule(number=KEYS, size=st.sampled_from(SIZES), pinned=st.booleans(), model=st.sampled_from("xy"))
    def add(self, number: int, size: int, pinned: bool, model: str) -> None:
        self.now += 1
        key = BlockKey(bytes([number]) * 32, 0)
        block = StoredBlock(key, Place(size, number), origin(model), bytes(32), 16, self.now, pinned)
        self.model = [each for each in self.model if each.key != key] + [block]
        self.contents.add(block)

    @rule(number=KEYS)
    def remove(self, number: int) -> None:
        key = BlockKey(bytes([number]) * 32, 0)
        found = self.find(key)
        assert self.contents.remove(key) is found
        self.model = [each for each in self.model if each is not found]

    @rule(number=KEYS)
    def touch(self, number: int) -> None:
        self.now += 1
        found = self.find(BlockKey(bytes([number]) * 32, 0))
        assert self.contents.touch(BlockKey(bytes([number]) * 32, 0), self.now) is found
        if found is not None:
            assert found.used == self.now
            self.model.remove(found)
            self.model.append(found)

    @rule(number=KEYS, pinned=st.booleans())
    def pin(self, number: int, pinned: bool) -> None:
        found = self.find(BlockKey(bytes([number]) * 32, 0))
        self.contents.set_pinned(BlockKey(bytes([number]) * 32, 0), pinned)
        if found is not None:
            assert found.pinned == pinned
            self.model.remove(found)
            self.model.append(found)

    @invariant()
    def what_is_found_is_what_was_put_there(self) -> None:
        assert len(self.contents) == len(self.model) and set(map(id, self.contents)) == set(map(id, self.model))
        assert self.contents.num_pinned == sum(block.pinned for block in self.model)
        for model in "xy":
            assert self.contents.num_of(origin(model).model) == sum(b.origin == origin(model) for b in self.model)

    @invariant()
    def what_was_not_used_for_longest_goes_first_and_what_is_pinned_never(self) -> None:
        for size in SIZES:
            free = [block for block in self.model if block.place.slot_bytes == size and not block.pinned]
            for count in (0, 1, 3):
                assert self.contents.least_recent(size, count) == free[:count]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_nobody_used_since_then_is_found_by_its_time_unless_it_is_pinned():
    contents = Contents()
    blocks = [
        StoredBlock(BlockKey(bytes([n]) * 32, 0), Place(4096, n), origin(), bytes(32), 16, float(n), n == 1)
        for n in range(5)
    ]
    for block in blocks:
        contents.add(block)
    contents.touch(blocks[0].key, 9.0)
    assert contents.unused_since(4.0) == blocks[2:4]
