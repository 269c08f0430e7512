"""Breakpoints: where ``cache_control`` stands in a request, and the API's rules on it.

Positions count what a breakpoint can look back over, in the order of the prompt; calls in a row are one, and so are
results in a row::

    tools[0]  tools[1]  system[0]  text  thinking  text  tool_use tool_use  tool_result tool_result  text
       1         2          3        4       5       6   |------- 7 ------| |---------- 8 ---------|   9
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.server.anthropic.blocks import (
    Block,
    RedactedThinkingBlock,
    ResultPart,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from octavo.server.anthropic.conversation import Turn
from octavo.server.anthropic.fields import CacheControl
from octavo.server.anthropic.options import Tool
from octavo.server.errors import ApiError, invalid
from octavo.server.prompt_cache.caching import HOUR, Caching, Mark
from octavo.text.places import Place

MOST = 4
"""Breakpoints of one request, the automatic one included."""
LOOK_BACK = 20
"""Positions at which a breakpoint looks for something to read, its own included."""
_RUNS = (ToolUseBlock, ToolResultBlock)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a breakpoint can stand: ``where`` in the request, ``place`` in the prompt; ``block`` stands there."""

    where: str
    block: Tool | Block | ResultPart
    place: Place
    position: int

    @property
    def control(self) -> CacheControl | None:
        return self.block.cache_control


def wanted_caching(tools: Sequence[Tool], turns: Sequence[Turn], automatic: CacheControl | None) -> Caching:
    """What a request asks of the prompt cache; ``automatic``: the mark on the request itself.

    Raises:
        ApiError: there are too many breakpoints, one of an hour comes after one of five minutes, or the automatic one
            wants another time than the one that is there.
    """
    spots = list(_spots(tools, turns))
    marked = [(f"{spot.where}.cache_control", spot, spot.control) for spot in spots if spot.control is not None]
    if automatic is not None:
        last = spots[-1]  # there is one: a conversation has something that is said by the user
        if last.control is None:
            marked.append(("cache_control", last, automatic))
        elif last.control.seconds != automatic.seconds:
            raise invalid(
                f"cache_control.ttl must be that of {last.where}.cache_control, where the automatic breakpoint stands: "
                f"{last.control.ttl or '5m'}",
                "cache_control.ttl",
            )
    if len(marked) > MOST:
        raise _too_many(marked[MOST][0], len(marked))
    shortest = HOUR
    for field, _, control in marked:
        if control.seconds > shortest:
            raise invalid(
                f"{field}.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block",
                f"{field}.ttl",
            )
        shortest = min(shortest, control.seconds)
    marks = [Mark(spot.place, spot.position, control.seconds) for _, spot, control in marked]
    return Caching(contract="anthropic", marks=marks, look_back=LOOK_BACK, max_written=MOST)


def _too_many(field: str, number: int) -> ApiError:
    return invalid(f"{field}: a maximum of {MOST} blocks with cache_control may be provided. Found {number}.", field)


def _spots(tools: Sequence[Tool], turns: Sequence[Turn]) -> Iterator[_Spot]:
    """All there are, in the order of the prompt."""
    position = 0
    for position, tool in enumerate(tools, 1):
        yield _Spot(f"tools[{position - 1}]", tool, Place("tool", position - 1), position)
    first = 0  # of the messages that the turn becomes
    before: Block | None = None
    for turn in turns:
        places = _block_places(turn, first)
        for block, where, place in zip(turn.blocks, turn.places, places, strict=True):
            if not (isinstance(block, _RUNS) and type(block) is type(before)):
                position += 1
            before = block
            if isinstance(block, ToolResultBlock):
                for index, part in enumerate(block.content):
                    inner = Place(place.kind, place.index, part=index)
                    yield _Spot(f"{where}.content[{index}]", part, inner, position)
            if not isinstance(block, (ThinkingBlock, RedactedThinkingBlock)):
                yield _Spot(where, block, place, position)
        first += len(turn.results()) + (len(turn.results()) < len(turn.blocks))


def _block_places(turn: Turn, first: int) -> list[Place]:
    """Where the blocks of ``turn`` stand in the messages that it becomes, ``first`` being the first of them."""
    if turn.role == "assistant":
        return _assistant_places(turn, first)
    if turn.role == "system" and first == 0:
        return [Place("system", index) for index in range(len(turn.blocks))]
    num_results = len(turn.results())
    results = [Place("message", first + index) for index in range(num_results)]
    others = range(len(turn.blocks) - num_results)
    return [*results, *(Place("message", first + num_results, part=index) for index in others)]


def _assistant_places(turn: Turn, index: int) -> list[Place]:
    """Calls are shown behind all text, so text behind a call is covered by what covers the call, and so is reasoning,
    which is shown first.
    """
    places: list[Place] = []
    num_texts = num_calls = 0
    for block in turn.blocks:
        if isinstance(block, ToolUseBlock):
            num_calls += 1
        elif not isinstance(block, (ThinkingBlock, RedactedThinkingBlock)):
            num_texts += 1
        if num_calls:
            places.append(Place("message", index, call=num_calls - 1))
        else:
            places.append(Place("message", index, part=max(num_texts - 1, 0)))
    return places
