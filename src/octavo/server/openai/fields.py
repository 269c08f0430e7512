"""What the models of several requests share: forms told apart by what they are, refusals by name, cache markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field
from pydantic_core import PydanticCustomError

from octavo.server.validation import Body, unsupported

TEXT_ONLY = "text models are all that Octavo runs"


def refused(why: str) -> BeforeValidator:
    """For a field that the API has and this server does not: ``Annotated[None, refused(why)] = None``.

    ``null`` asks for nothing, so it may be sent.
    """

    def check(value: Any) -> None:
        if value is not None:
            raise unsupported(why)

    return BeforeValidator(check)


def told_apart(tag_of: Callable[[Any], str | None], allowed: str) -> Discriminator:
    """Choose among forms of a value before one is tried, so that an error is about the form that was meant.

    ``tag_of``: the tag of a value's form, in brackets so that it is the name of no field; ``None``: it has none.
    """
    return Discriminator(tag_of, custom_error_type="wrong_form", custom_error_message=f"Must be {allowed}")


def text_or_list(value: Any) -> str | None:
    return "(text)" if isinstance(value, str) else "(list)" if isinstance(value, list) else None


def _kind_of_part(kind: Any) -> Any:
    if isinstance(kind, str) and kind != "text":
        raise unsupported(f"content of this type cannot be read: {TEXT_ONLY}")
    return kind


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("unicode", "Must be valid Unicode; it holds half a surrogate pair") from None
    return text


Words = Annotated[str, AfterValidator(_check_unicode)]
"""A text that a model can read."""


class CacheControl(Body):
    """Anthropic's mark of a breakpoint, which other clients send too."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CacheBreakpoint(Body):
    """OpenAI's mark of a breakpoint."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class Markable(Body):
    """What a breakpoint may stand on. Markers change neither a token nor an answer."""

    prompt_cache_breakpoint: CacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class TextPart(Markable):
    type: Annotated[Literal["text"], BeforeValidator(_kind_of_part)]
    text: Words


class StreamOptions(Body):
    """``include_obfuscation`` has no effect: frames are as long as what they say."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


Short = Annotated[str, Field(max_length=64)]
Metadata = Annotated[dict[Short, Annotated[str, Field(max_length=512)]], Field(max_length=16)]
