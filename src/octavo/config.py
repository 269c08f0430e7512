"""EngineConfig: every limit and default of the engine, validated once, in one place."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError, shown
from octavo.formats.kv_format import KVFormat, parse_kv_dtype
from octavo.formats.tiles import TILE_TOKENS

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
MAX_BYTES = 2**63 - 1
_TOKEN_UNITS = {"": 1, "k": 2**10, "m": 2**20}
_TOKENS = re.compile(r"\s*([0-9]{1,12})\s*([kKmM]?)\s*")
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | str) -> int:
    """Turn ``"512MiB"``, ``"2GB"``, ``"1.5 GiB"`` or a plain number into bytes.

    Raises:
        ConfigError: the text is not a size, or the size is not positive or more than a process
            can address.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise ConfigError(f"a size is a number of bytes or a text such as '512MiB'; got {shown(size)}")
    if isinstance(size, int):
        value = size
    else:
        match = _SIZE.fullmatch(size)
        unit = match.group(2).lower() if match else None
        if match is None or unit not in _UNITS:
            raise ConfigError(f"cannot read {shown(size)} as a size; write a number of bytes, or '512MiB', '2GB'")
        value = int(float(match.group(1)) * _UNITS[unit])
    if not 0 < value <= MAX_BYTES:
        raise ConfigError(f"a size must be positive and at most {MAX_BYTES:,} bytes; got {shown(size)}")
    return value


def parse_tokens(count: int | str) -> int:
    """Turn ``"8k"`` (8,192), ``"1m"`` or a plain number into a number of tokens.

    Raises:
        ConfigError: the text is not a number of tokens, or the number is not positive.
    """
    if isinstance(count, bool) or not isinstance(count, (int, str)):
        raise ConfigError(f"a number of tokens is a whole number or a text such as '8k'; got {shown(count)}")
    value = count
    if isinstance(value, str):
        match = _TOKENS.fullmatch(value)
        if match is None:
            raise ConfigError(
                f"cannot read {shown(count)} as a number of tokens; write 8192, or '8k', which is the same"
            )
        value = int(match.group(1)) * _TOKEN_UNITS[match.group(2).lower()]
    if value <= 0:
        raise ConfigError(f"a number of tokens must be positive; got {shown(count)}")
    return value


def user_cache() -> Path:
    """The folder Octavo keeps fetched models and packed copies in; not created here.

    ``$OCTAVO_CACHE``, else ``$XDG_CACHE_HOME/octavo``, else ``~/.cache/octavo``.

    Raises:
        ConfigError: there is no home directory to put it in.
    """
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen := os.environ.get("OCTAVO_CACHE"):
            return Path(chosen).expanduser()
        return (Path(shared) if shared else Path.home() / ".cache") / "octavo"
    except RuntimeError as error:
        raise ConfigError(f"there is no folder for the cache: {error} Set OCTAVO_CACHE to one") from error


def default_kv_disk() -> Path:
    """The folder of the disk tier where one is had without asking: ``kv`` in :func:`user_cache`. Raises as that."""
    return user_cache() / "kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is told before it starts. Frozen; an invalid one cannot be made.

    Attributes:
        block_size: tokens per block, a multiple of 16 up to 1024.
        kv_memory: bytes for the KV pool (``int`` or ``"512MiB"``). ``None``: ``kv_memory_share`` of the memory
            that is free at start, but no more than ``max_num_seqs`` sequences of ``max_model_len`` can use.
        kv_memory_share: see ``kv_memory``; between 0 and 1.
        max_model_len: most tokens of prompt and output together. ``None``: what the model allows, or what the
            KV memory holds if that is less.
        max_num_seqs: most sequences that run in one step.
        max_num_batched_tokens: most tokens computed in one step. It bounds how long a running decode waits for
            somebody else's prompt: one such chunk.
        enable_prefix_caching: share computed blocks across requests.
        retention_budget: share of the blocks, from 0 to 1, that may be retained while no request holds them: evicted
            after all others, for the time that was asked for.
        kv_dtype: how keys and values are stored: ``"bf16"``, ``"int8"``, ``"fp8"``, ``"int4"`` (keys in 8 bits, values
            in 4), ``"int4-full"``, or keys and values apart, such as ``"int8:fp8"``.
        kv_8bit_layers: layers that keep 8 bits where ``kv_dtype`` says 4. ``None``: none of them.
        kv_quality_gate: refuse 4-bit keys unless an evaluation of this very model (``octavo eval-kv``) passed.
        kv_disk: folder in which computed blocks outlive the process. ``None``: they do not.
        kv_disk_limit: most bytes of it (``int`` or ``"20GiB"``).
        kv_disk_ttl: seconds after which blocks there that nobody used are forgotten. ``None``: never.
        kv_disk_queue: most bytes of memory for blocks that wait to be written there; what finds no room is not written.
        threads: worker threads of the native core. ``None``: the processors this process may use.
        isa: instruction set to force. ``None``: the best the machine has, or ``OCTAVO_ISA``.
        seed: where seeds for requests without one are drawn from. ``None``: the operating system.

    Raises:
        ConfigError: on construction, naming the field, what was given and what is allowed.
    """

    block_size: int = 16
    kv_memory: int | str | None = None
    kv_memory_share: float = 0.4
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    retention_budget: float = 0.5
    kv_dtype: str = "bf16"
    kv_8bit_layers: Sequence[int] | None = None
    kv_quality_gate: bool = True
    kv_disk: str | Path | None = None
    kv_disk_limit: int | str = "20GiB"
    kv_disk_ttl: float | None = None
    kv_disk_queue: int | str = "64MiB"
    threads: int | None = None
    isa: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_int("block_size", self.block_size, TILE_TOKENS, 1024)
        if self.block_size % TILE_TOKENS:
            raise ConfigError(f"block_size must be a multiple of {TILE_TOKENS}; got {self.block_size}")
        if self.kv_memory is not None:
            object.__setattr__(self, "kv_memory", parse_bytes(self.kv_memory))
        share = self.kv_memory_share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise ConfigError(f"kv_memory_share must lie between 0 and 1; got {shown(share)}")
        if self.max_model_len is not None:
            _check_int("max_model_len", self.max_model_len, 1, 2**31 - 1)
        _check_int("max_num_seqs", self.max_num_seqs, 1, 4096)
        _check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**16)
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigError(f"enable_prefix_caching must be True or False; got {shown(self.enable_prefix_caching)}")
        budget = self.retention_budget
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= 1:
            raise ConfigError(f"retention_budget must be a number from 0 to 1; got {shown(budget)}")
        _check_kv_dtype(self.kv_dtype)
        if self.kv_8bit_layers is not None:
            object.__setattr__(self, "kv_8bit_layers", _layers("kv_8bit_layers", self.kv_8bit_layers))
        if not isinstance(self.kv_quality_gate, bool):
            raise ConfigError(f"kv_quality_gate must be True or False; got {shown(self.kv_quality_gate)}")
        if self.kv_disk is not None and (not isinstance(self.kv_disk, (str, Path)) or not str(self.kv_disk)):
            raise ConfigError(f"kv_disk must be the path of a folder; got {shown(self.kv_disk)}")
        for name in ("kv_disk_limit", "kv_disk_queue"):
            object.__setattr__(self, name, parse_bytes(getattr(self, name)))
        ttl = self.kv_disk_ttl
        if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not ttl > 0):
            raise ConfigError(f"kv_disk_ttl must be a number of seconds above 0; got {shown(ttl)}")
        if self.isa is not None and not isinstance(self.isa, str):
            raise ConfigError(f"isa must be the name of an instruction set; got {shown(self.isa)}")
        if self.threads is not None:
            _check_int("threads", self.threads, 1, 256)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**63 - 1)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """A configuration from settings by name, as a caller gives them.

        Raises:
            ConfigError: there is no such setting, or as on construction.
        """
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise ConfigError(f"there is no setting {name!r}{hint}; there are {', '.join(known)}")
        return cls(**settings)

    @property
    def max_num_running(self) -> int:
        """Most sequences that run at once. Every running decode fits the budget of every step, so no more may run
        than the budget has tokens.
        """
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def kv_format(self) -> KVFormat:
        """What ``kv_dtype`` names."""
        return parse_kv_dtype(self.kv_dtype)

    @property
    def kv_memory_bytes(self) -> int | None:
        """The byte budget for the KV pool, if one was given."""
        return None if self.kv_memory is None else parse_bytes(self.kv_memory)

    @property
    def kv_disk_limit_bytes(self) -> int:
        """``kv_disk_limit`` in bytes."""
        return parse_bytes(self.kv_disk_limit)

    @property
    def kv_disk_queue_bytes(self) -> int:
        """``kv_disk_queue`` in bytes."""
        return parse_bytes(self.kv_disk_queue)


def _check_kv_dtype(value: object) -> None:
    try:
        parse_kv_dtype(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ConfigError(f"kv_dtype must be {error}; got {shown(value)}") from error


def _layers(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of layers, counted from 0; got {shown(value)}")
    for layer in value:
        _check_int(f"a layer in {name}", layer, 0, 2**14)
    return tuple(sorted(set(value)))


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}; got {shown(value)}")
