"""ServerConfig: every limit and default of the server, validated once, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import parse_bytes
from octavo.errors import ConfigError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is told before it starts. Frozen; an invalid one cannot be made.

    Attributes:
        model_names: names that requests may ask for; the first is reported. Empty: the model's own name.
        max_body: most bytes of one request (``int`` or ``"10MiB"``); more is answered 413.
        max_queue: most answers that may wait beside those that run; more are answered 429. What runs is never dropped.
        max_concurrency: most answers of one tenant at once, waiting or running; more are answered 429. ``None``: any.
        timeout: seconds after which an answer ends with an error; ``None``: never.
        max_stored: most responses kept for one tenant (``store`` of /v1/responses); those go first that were not
            gone on with for longest.
        max_stored_bytes: most bytes of them (``int`` or ``"256MiB"``).
        cors_origins: origins whose pages may call the server; none by default.
    """

    model_names: tuple[str, ...] = ()
    max_body: int | str = "16MiB"
    max_queue: int = 256
    max_concurrency: int | None = None
    timeout: float | None = None
    max_stored: int = 1000
    max_stored_bytes: int | str = "256MiB"
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_body", parse_bytes(self.max_body))
        _whole("max_queue", self.max_queue, 0)
        if self.max_concurrency is not None:
            _whole("max_concurrency", self.max_concurrency, 1)
        _whole("max_stored", self.max_stored, 0)
        object.__setattr__(self, "max_stored_bytes", parse_bytes(self.max_stored_bytes))
        timeout = self.timeout
        number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (number and 0 < timeout <= 1e9):
            raise ConfigError(f"timeout must be a number of seconds above 0, or None; got {shown(timeout)}")

    @property
    def max_body_bytes(self) -> int:
        return parse_bytes(self.max_body)


def _whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name} must be a whole number of at least {low}; got {shown(value)}")
