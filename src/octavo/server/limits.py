"""Admission: how many answers may be under way, in all and of one tenant. What is under way is never dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from octavo.server.calls import Caller
from octavo.server.errors import ApiError, ErrorKind, invalid

RETRY_AFTER = 1
"""Seconds after which a client that was turned away should try again."""


class Admission:
    """Counts answers under way. Lives on the event loop, so it needs no lock.

    Attributes:
        capacity: most answers at once.

    Args:
        max_running: answers that the engine runs at once.
        max_queue: answers that may wait beside them.
        max_concurrency: answers of one tenant; ``None`` for any number.
    """

    def __init__(self, *, max_running: int, max_queue: int, max_concurrency: int | None) -> None:
        self.capacity = max_running + max_queue
        self._max_concurrency = max_concurrency
        self._under_way: Counter[str] = Counter()

    @property
    def num_under_way(self) -> int:
        return self._under_way.total()

    def admit(self, caller: Caller, num_answers: int) -> Callable[[], None]:
        """Take room for ``num_answers``; call what it returns, once, when they have ended.

        Raises:
            ApiError: there is none (429), or never will be so much (400).
        """
        most = min(self.capacity, self._max_concurrency or self.capacity)
        if num_answers > most:
            raise invalid(f"{num_answers} answers are asked for; this server takes at most {most} at once", "n")
        own = self._under_way[caller.tenant]
        if self._max_concurrency is not None and own + num_answers > self._max_concurrency:
            raise _full(
                f"{own} answers of yours are under way and {num_answers} more are asked for; "
                f"at most {self._max_concurrency} are allowed at once"
            )
        if self.num_under_way + num_answers > self.capacity:
            raise _full(
                f"{self.num_under_way} answers are under way and {num_answers} more are asked for; "
                f"this server takes {self.capacity} at once"
            )
        self._under_way[caller.tenant] += num_answers

        def release() -> None:
            self._under_way[caller.tenant] -= num_answers
            if not self._under_way[caller.tenant]:
                del self._under_way[caller.tenant]

        return release


def _full(message: str) -> ApiError:
    return ApiError(ErrorKind.RATE_LIMIT, message, code="rate_limit_exceeded", retry_after=RETRY_AFTER)
