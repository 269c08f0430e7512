"""Reading a model's configuration with no key ignored: each is used, known to be harmless, or refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from octavo.errors import UnsupportedModelError


class Fields:
    """One mapping of settings; remembers which keys were asked for, so that the rest can be refused.

    Args:
        values: the settings.
        where: what to call their origin in messages.
        prefix: put before every key that is asked for.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.where = where
        self._values = values
        self._prefix = prefix
        self._seen: set[str] = set()

    def get(self, key: str) -> Any:
        """The value as it stands, or ``None``."""
        self._seen.add(self._prefix + key)
        return self._values.get(self._prefix + key)

    def ignore(self, *keys: str) -> None:
        """Count keys as understood that change nothing here."""
        for key in keys:
            self.get(key)

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """A whole number from ``low`` to ``high``; a missing or null key is ``default``, or refused without one."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(key, value, f"a whole number from {low} to {high}")
        return value

    def integer_or_none(self, key: str, missing: int | None = None) -> int | None:
        """A whole number from 1; null says that there is none, and a missing key is ``missing``."""
        return self.integer(key, missing) if self._is_stated(key, missing) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite positive number as float; a missing or null key is ``default``, or refused without one."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refusal(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise self.refusal(key, value, "a finite number above 0")
        return number

    def number_or_none(self, key: str, missing: float | None = None) -> float | None:
        """A finite positive number; null says that there is none, and a missing key is ``missing``."""
        return self.number(key, missing) if self._is_stated(key, missing) else None

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, one or more."""
        values = self._required(key, None)
        if not isinstance(values, list) or not values:
            raise self.refusal(key, values, "a list of numbers")
        return tuple(Fields({key: value}, f"{self.where} in its list").number(key) for value in values)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; a missing or null key is ``default``."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, value, "true or false")
        return value

    def only(self, key: str, *allowed: object) -> None:
        """Refuse every value but these; a missing or null key is fine."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.refusal(key, value, " or ".join(map(str, allowed)))

    def refuse_rest(self, harmless: Collection[str] = ()) -> None:
        """Refuse every key that was not asked for, is not ``harmless``, and switches something on.

        Null, false, zero and empty values say that a thing is not used; they pass.
        """
        for key, value in self._values.items():
            if not key.startswith(self._prefix) or key in self._seen or key in harmless:
                continue
            if value is None or value in (False, 0, "") or (isinstance(value, (list, dict)) and not value):
                continue
            raise UnsupportedModelError(
                f"{self.where} sets {key} to {_short(value)}, which Octavo does not do; "
                "it may change what the model computes, so it is not ignored"
            )

    def refusal(self, key: str, value: object, allowed: str) -> UnsupportedModelError:
        """The error for a key whose value Octavo cannot follow."""
        return UnsupportedModelError(
            f"{self.where} sets {self._prefix}{key} to {_short(value)}; Octavo needs {allowed}"
        )

    def _is_stated(self, key: str, missing: object) -> bool:
        absent = self._prefix + key not in self._values
        return missing is not None if absent else self.get(key) is not None

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise UnsupportedModelError(f"{self.where} does not say {self._prefix}{key}, which Octavo needs")
        return value


def float32_as_written(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF stores 1e-5 as the nearest float32, and means 1e-05."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
