"""What the models of requests share: choosing among forms by their ``type``, and refusing by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field

from octavo.server.prompt_cache.caching import FIVE_MINUTES, HOUR
from octavo.server.validation import Body, unsupported

WRAPPED = 5
"""How deep what a client nests (a call's input, a schema) lies in what a template gets."""
Words = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""


class CacheControl(Body):
    """A breakpoint. It changes neither a token nor an answer."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> int:
        """How long what it marks is to be kept."""
        return HOUR if self.ttl == "1h" else FIVE_MINUTES


class Citations(Body):
    enabled: Annotated[bool, BeforeValidator(lambda value: _no_citations(value))] = False


def by_type(*kinds: str, why: str = "") -> Discriminator:
    """Choose a form by its ``type``. Its tag is the type in brackets, which is the name of no field: see ``_path``."""
    allowed = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    return Discriminator(
        _tag,
        custom_error_type="unknown_type",
        custom_error_message=f"must be an object whose type is {allowed}{why}",
    )


def _tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return f"({kind})" if isinstance(kind, str) else None


def _refuse(value: Any) -> Any:
    if value is not None:
        raise unsupported("this server does not have it; leave it out")
    return value


def _no_citations(value: Any) -> Any:
    if value is True:
        raise unsupported("this server writes no citations; leave it out")
    return value


Unsupported = Annotated[None, BeforeValidator(_refuse)]
"""A field of the API that is refused by name. ``null`` asks for nothing, so it may be sent."""
