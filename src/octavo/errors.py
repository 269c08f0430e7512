"""Every exception Octavo raises for its caller, in one place.

Each message says what was given, what is allowed and, where there is one, what to do. All derive from
:class:`OctavoError`, so that one ``except`` is enough for a caller who does not care which.
"""

from __future__ import annotations

_LONGEST_SHOWN = 200


class OctavoError(Exception):
    """Base of everything Octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """An engine setting is out of range, contradicts another, or asks for what this machine lacks."""


class CapacityError(ConfigError):
    """The KV memory cannot hold what must fit in it."""


class KVQualityError(ConfigError):
    """A KV format that breaks some models was asked for, and no evaluation found it good enough for this one."""


class TierInUseError(ConfigError):
    """The folder of a disk tier belongs to another process just now."""


class AdminError(OctavoError):
    """The server that has a disk tier's folder cannot be asked about it, or refuses."""


class ModelError(OctavoError):
    """A model cannot be used. Its subclasses say why."""


class ModelNotFoundError(ModelError):
    """No model of that name, path or hub id could be found or fetched."""


class UnsupportedModelError(ModelError):
    """The model's configuration asks for something Octavo does not do; the message names it."""


class WeightsError(ModelError):
    """A weight file is missing, damaged, or disagrees with the model's configuration."""


class InvalidRequestError(OctavoError, ValueError):
    """A request cannot be served as given. ``param`` names the offending parameter when there is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """The request needs more tokens than the context or the KV memory holds. Both sizes are attributes."""

    def __init__(self, message: str, *, requested: int, limit: int, param: str | None = "prompt") -> None:
        super().__init__(message, param=param)
        self.requested = requested
        self.limit = limit


class TemplateError(InvalidRequestError):
    """The chat template is missing, or refuses these messages."""


class MissingPackageError(OctavoError, ImportError):
    """A package that only this needs is not installed; the message says how to install it."""


class EngineDeadError(OctavoError):
    """The engine failed earlier and serves nothing more. ``__cause__`` is the first failure."""


def shown(value: object) -> str:
    """``repr(value)`` as a message may quote it: short, and for any value, since not every one can be printed."""
    try:
        text = repr(value)
    except Exception:  # a number with more digits than Python prints, or a broken __repr__ of the caller's own
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
