"""ServerConfig: every limit and default of the server, validated once, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from octavo.config import parse_bytes
from octavo.errors import ConfigError, shown

_LONGEST_SECONDS = 1e9

AnthropicUsage = Literal["contract", "physical"]
OpenAIUsage = Literal["exact", "rounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is told before it starts. Frozen; an invalid one cannot be made.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 for any that is free.
        allow_anyone: listen to other machines although there are no API keys.
        model_names: names that requests may ask for; the first is reported. Empty: the model's own name.
        max_body: most bytes of one request (``int`` or ``"10MiB"``); more is answered 413.
        max_queue: most answers that may wait beside those that run; more are answered 429. What runs is never dropped.
        max_concurrency: most answers of one tenant at once, waiting or running; more are answered 429. ``None``: any.
        max_connections: most connections at once; those beyond are answered 503.
        timeout: seconds from its arrival after which a request ends with an error; ``None``: never.
        client_timeout: seconds that a client may take to send a request, or to take what it was sent.
        keep_alive: seconds that a connection may lie idle between two requests.
        shutdown_timeout: seconds that answers may still take once the server was told to end.
        max_stored: most responses kept for one tenant (``store`` of /v1/responses); those go first that were not
            gone on with for longest.
        max_stored_bytes: most bytes of them (``int`` or ``"256MiB"``).
        min_cache_tokens: prompts with fewer tokens up to a breakpoint have nothing cached there, as the APIs count it.
        anthropic_usage: what Anthropic's usage reports as read: what a breakpoint's entry covers and was reused
            (``"contract"``), or all that was reused (``"physical"``).
        openai_usage: ``cached_tokens`` to the token (``"exact"``), or as OpenAI itself rounds them (``"rounded"``).
        max_history: most prompts of one tenant that misses are explained by.
        max_history_bytes: most bytes of them (``int`` or ``"64MiB"``).
        max_caches: most named caches of one tenant.
        max_cache_tokens: most tokens of them together; ``None``: what the retention budget holds.
        share_cache: groups of tenants, each ``"alice,bob"``, that find each other's prompts in the cache; no tenant
            finds another's otherwise.
        drop_system_lines: beginnings of lines that are left out where a system prompt begins with them: some clients
            put a line there that is another one each time.
        cors_origins: origins whose pages may call the server (``"https://chat.example.com"``, or ``"*"`` for any);
            none by default.
        public_metrics: let everybody read /metrics, not administrators alone.
        vllm_metrics: give the metrics under vLLM's names too.

    Raises:
        ConfigError: on construction, naming the field, what was given and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allow_anyone: bool = False
    model_names: Sequence[str] = ()
    max_body: int | str = "16MiB"
    max_queue: int = 256
    max_concurrency: int | None = None
    max_connections: int = 1024
    timeout: float | None = None
    client_timeout: float = 60
    keep_alive: float = 75
    shutdown_timeout: float = 30
    max_stored: int = 1000
    max_stored_bytes: int | str = "256MiB"
    min_cache_tokens: int = 0
    anthropic_usage: AnthropicUsage | str = "contract"
    openai_usage: OpenAIUsage | str = "exact"
    max_history: int = 1000
    max_history_bytes: int | str = "64MiB"
    max_caches: int = 100
    max_cache_tokens: int | None = None
    share_cache: Sequence[str] = ()
    drop_system_lines: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    public_metrics: bool = False
    vllm_metrics: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise ConfigError(f"host must be an address, such as 127.0.0.1 or ::; got {shown(self.host)}")
        _whole("port", self.port, 0, 65535)
        object.__setattr__(self, "max_body", parse_bytes(self.max_body))
        _whole("max_queue", self.max_queue, 0)
        if self.max_concurrency is not None:
            _whole("max_concurrency", self.max_concurrency, 1)
        _whole("max_connections", self.max_connections, 1)
        if self.timeout is not None:
            _seconds("timeout", self.timeout)
        _seconds("client_timeout", self.client_timeout)
        _seconds("keep_alive", self.keep_alive)
        if self.shutdown_timeout != 0:
            _seconds("shutdown_timeout", self.shutdown_timeout)
        _whole("max_stored", self.max_stored, 0)
        object.__setattr__(self, "max_stored_bytes", parse_bytes(self.max_stored_bytes))
        self._check_caching()
        for name in ("model_names", "cors_origins", "share_cache", "drop_system_lines"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        for origin in self.cors_origins:
            if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
                raise ConfigError(
                    f"cors_origins must be origins, such as https://chat.example.com, or *; got {shown(origin)}"
                )
        for name in ("allow_anyone", "public_metrics", "vllm_metrics"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False; got {shown(getattr(self, name))}")

    def _check_caching(self) -> None:
        _whole("min_cache_tokens", self.min_cache_tokens, 0)
        _choice("anthropic_usage", self.anthropic_usage, get_args(AnthropicUsage))
        _choice("openai_usage", self.openai_usage, get_args(OpenAIUsage))
        _whole("max_history", self.max_history, 0)
        object.__setattr__(self, "max_history_bytes", parse_bytes(self.max_history_bytes))
        _whole("max_caches", self.max_caches, 0)
        if self.max_cache_tokens is not None:
            _whole("max_cache_tokens", self.max_cache_tokens, 0)

    @property
    def max_body_bytes(self) -> int:
        return parse_bytes(self.max_body)


def _whole(name: str, value: object, low: int, high: int = 2**31 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}; got {shown(value)}")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _LONGEST_SECONDS:
        raise ConfigError(f"{name} must be a number of seconds above 0; got {shown(value)}")


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, allowed))}; got {shown(value)}")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of texts; got {shown(value)}")
    for text in value:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{name} must be a list of texts that are not empty; got {shown(text)}")
    return tuple(value)
