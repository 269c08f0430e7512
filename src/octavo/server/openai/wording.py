"""Errors in the client's words: it sent ``max_completion_tokens``, where the engine speaks of ``max_tokens``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError
from octavo.server.errors import ApiError, as_api_error


@dataclass(frozen=True, slots=True)
class Wording:
    """What the client calls what the engine has other names for.

    Attributes:
        fields: its fields by the engine's names; messages are rewritten too.
        places: where a fault lies, by the engine's name for it; messages stay as they are, for there it is a word
            (``prompt``) or a field that the client did not send.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """What the engine refuses inside is refused in the client's words; a dialect's errors already are."""
        try:
            yield
        except InvalidRequestError as error:
            raise self.of(as_api_error(error)) from error
        except ApiError as error:
            if not isinstance(error.__cause__, InvalidRequestError):
                raise
            raise self.of(error) from error.__cause__

    def of(self, error: ApiError) -> ApiError:
        message, param = error.message, error.param
        if self.fields:
            names = "|".join(map(re.escape, sorted(self.fields, key=len, reverse=True)))
            message = re.sub(rf"\b(?:{names})\b", lambda found: self.fields[found[0]], message)
        if param is not None:
            param = self.places.get(param) or self.fields.get(param, param)
        return ApiError(error.kind, message, param=param, code=error.code, retry_after=error.retry_after)


def output_fields(names: Mapping[str, str], has_tools: bool) -> dict[str, str]:
    """What to call a constraint. ``names``: the client's name for what it sent, by its kind; empty: it sent none.

    Where there are tools or reasoning, everything is one grammar when it gets to the engine.
    """
    fields = {f"structured_outputs.{kind}": name for kind, name in names.items()}
    whole = next(iter(names.values()), "tools" if has_tools else None)
    if whole is not None:
        fields |= {"structured_outputs.grammar": whole, "structured_outputs": whole}
    return fields
