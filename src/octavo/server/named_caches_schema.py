"""What requests about named caches may hold."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from octavo.server.anthropic.blocks import Texts
from octavo.server.anthropic.options import Tool, functions
from octavo.server.errors import invalid
from octavo.server.named_caches_lifecycle import Lifetime
from octavo.server.openai.fields import Words, refused, told_apart
from octavo.server.openai.messages import Message, template_messages
from octavo.server.openai.tools import FunctionTool, template_tools
from octavo.server.openai.wording import Wording, output_fields
from octavo.server.prompt_cache.caching import DAY, HOUR
from octavo.server.prompt_cache.named import Content
from octavo.server.validation import Body

MAX_TTL = 7 * DAY
_UNITS = {"s": 1, "m": 60, "h": HOUR, "d": DAY}
_TTL = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_SYNTAX = "Must be seconds, or a number with a unit: 300, '300s', '5m', '1h' or '7d'"
_FIXED = refused("What a cache holds never changes; create another one")


def _ttl(value: Any) -> Any:
    """Seconds of a time to live."""
    if value is None:
        return None
    if isinstance(value, str):
        found = _TTL.fullmatch(value)
        seconds = None if found is None else float(found[1]) * _UNITS[found[2]]
    else:
        seconds = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if seconds is None:
        raise PydanticCustomError("ttl", _SYNTAX)
    if not 0 < seconds <= MAX_TTL:
        raise PydanticCustomError("ttl", f"Must be more than nothing and at most {MAX_TTL // DAY} days")
    return float(seconds)


def _expire_time(value: Any) -> Any:
    """Seconds since 1970 of a time as RFC 3339 writes it."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in value.upper().replace(" ", "T"):
        raise PydanticCustomError(
            "expire_time", "Must be a time with its zone as RFC 3339 has it: '2030-01-31T12:00:00Z'"
        )
    left = moment.timestamp() - time.time()
    if left <= 0:
        raise PydanticCustomError("expire_time", "Must be in the future")
    if left > MAX_TTL:
        raise PydanticCustomError("expire_time", f"Must be within {MAX_TTL // DAY} days from now")
    return moment.timestamp()


class _Times(Body):
    ttl: Annotated[float | None, BeforeValidator(_ttl, json_schema_input_type=float | str | None)] = None
    expire_time: Annotated[float | None, BeforeValidator(_expire_time, json_schema_input_type=str | None)] = None

    def lifetime(self) -> Lifetime:
        """How long it is to be kept; an hour if nothing is said.

        Raises:
            ApiError: it is said twice (400).
        """
        if self.ttl is not None and self.expire_time is not None:
            raise invalid("ttl and expire_time both say when the cache expires; send one of them", "expire_time")
        return Lifetime(HOUR if self.ttl is None else self.ttl, self.expire_time)


def _tools_form(value: Any) -> str | None:
    """By the first: a list has tools of one API."""
    if not isinstance(value, list):
        return None
    first = value[0] if value else {}
    return "(anthropic)" if isinstance(first, dict) and "input_schema" in first else "(openai)"


_Tools = Annotated[
    Annotated[list[FunctionTool], Tag("(openai)")] | Annotated[list[Tool], Tag("(anthropic)")],
    told_apart(_tools_form, "a list of tools, as OpenAI's or as Anthropic's API has them"),
]


class BeginningBody(Body):
    """A conversation's beginning, or a text's."""

    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    system: Texts | None = None
    tools: _Tools | None = None
    prompt: Annotated[Words, Field(min_length=1)] | None = None

    def content(self) -> Content:
        """What is to be kept.

        Raises:
            ApiError: it is nothing, or a conversation and a text; or tools do not fit together (400).
            InvalidRequestError: a tool's schema is nested too deep.
        """
        given = [name for name in ("messages", "system", "tools") if getattr(self, name)]
        if self.prompt is not None:
            if given:
                raise invalid(
                    f"prompt is a text of its own; send it without {given[0]}, or send a conversation alone", "prompt"
                )
            return Content(text=self.prompt)
        if not given:
            raise invalid(
                "there is nothing to cache; send messages, system or tools, or a text as prompt",
                "messages",
                code="missing_required_parameter",
            )
        messages = template_messages(self.messages or [])
        if self.has_system:
            messages.insert(0, {"role": "system", "content": self._system_content()})
        return Content(messages, self._template_tools())

    @property
    def has_system(self) -> bool:
        """Whether a message is put before the client's own."""
        return bool(self.system)

    @property
    def wording(self) -> Wording:
        """What the client calls what the engine has other names for."""
        sent = next((name for name in ("prompt", "messages", "system", "tools") if getattr(self, name)), "messages")
        return Wording(output_fields({}, True), {"prompt": sent, "max_tokens": sent, "chat_template": "model"})

    def _system_content(self) -> str | list[dict[str, str]]:
        texts = [block.text for block in self.system or []]
        return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]

    def _template_tools(self) -> list[dict[str, Any]]:
        ours = [tool for tool in self.tools or [] if isinstance(tool, FunctionTool)]
        theirs = [tool for tool in self.tools or [] if isinstance(tool, Tool)]
        return functions(theirs) if theirs else template_tools(ours)


class CreateBody(_Times, BeginningBody):
    """``POST /v1/caches``."""

    model: str
    display_name: Annotated[Words, Field(max_length=128)] | None = None


class UpdateBody(_Times):
    """``PATCH /v1/caches/{name}``."""

    model: Annotated[None, _FIXED] = None
    messages: Annotated[None, _FIXED] = None
    system: Annotated[None, _FIXED] = None
    tools: Annotated[None, _FIXED] = None
    prompt: Annotated[None, _FIXED] = None
    display_name: Annotated[None, _FIXED] = None

    def lifetime(self) -> Lifetime:
        if self.ttl is None and self.expire_time is None:
            raise invalid("ttl or expire_time is required", "ttl", code="missing_required_parameter")
        return super().lifetime()
