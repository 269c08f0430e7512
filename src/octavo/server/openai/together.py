"""Several answers as one: all of them or none, and what is new of any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from octavo.server.answers import Answer, Increment, Reply

_T = TypeVar("_T")


async def all_started(starts: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Start all, or none: what the first one to be refused raises, after the others were aborted."""
    return await _together(starts)


async def all_collected(answers: Sequence[Answer]) -> list[list[Reply]]:
    """The whole of each. If one fails the others are aborted."""
    return await _together([answer.collect() for answer in answers])


async def interleaved(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, list[Increment]]]:
    """What is new and which answer it belongs to, as it comes.

    Raises:
        ApiError: one of them cannot go on.
    """
    if len(answers) == 1:
        async for news in answers[0].increments():
            yield 0, news
        return
    arrived: asyncio.Queue[tuple[int, list[Increment] | Exception | None]] = asyncio.Queue(len(answers))

    async def pump(place: int, answer: Answer) -> None:
        try:
            async for news in answer.increments():
                await arrived.put((place, news))
            await arrived.put((place, None))
        except Exception as error:
            await arrived.put((place, error))

    pumps = [asyncio.ensure_future(pump(place, answer)) for place, answer in enumerate(answers)]
    try:
        left = len(answers)
        while left:
            place, item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield place, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _together(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Answer):
                await result.close()
        raise
