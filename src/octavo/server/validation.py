"""Request bodies: strict models, and one readable message with the field's name for what does not fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from octavo.errors import shown
from octavo.server.errors import ApiError, invalid


def _fail_fast(schema: Any) -> None:
    """Have each list and mapping within a core schema end at its first error."""
    if isinstance(schema, list):
        for part in schema:
            _fail_fast(part)
    elif isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)


class Body(BaseModel):
    """Base of every request model: no field is ignored in silence, and no type is guessed.

    A client is told the first thing that is wrong, so no more than that is looked for in a list, in a mapping or among
    unknown names: a million errors, of one small body, take a gigabyte and hold everybody up for seconds.
    """

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in value if name not in known)
        return {name: item for name, item in value.items() if name in known or name == unknown}


def unsupported(why: str) -> PydanticCustomError:
    """What a validator raises for what an API has and this server does not. ``why`` is a sentence without its stop."""
    return PydanticCustomError("unsupported", "{why}", {"why": why})


def unreadable_body(cause: BaseException | None) -> ApiError:
    """What is wrong with a body that no JSON reader takes, though it may be JSON; ``cause``: what the reader raised."""
    if isinstance(cause, RecursionError):
        why = "it is nested too deep"
    elif isinstance(cause, UnicodeDecodeError):
        why = f"it is not UTF-8 (byte {cause.start:,})"
    elif isinstance(cause, ValueError):  # the only one that is neither of the above nor a JSON error
        why = "it has a whole number of too many digits"
    else:
        why = "it is not JSON"
    return invalid(f"the body cannot be read: {why}", None)


def validation_error(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body, as a 400. A field that is unknown comes before one that is missing
    beside it: it may be the same one, misspelt.
    """
    first = _first(error.errors())
    in_body = first["loc"][0] == "body"
    path = _path(first["loc"], error.body) if in_body else str(first["loc"][-1])
    kind = first["type"]
    if kind == "json_invalid":
        return invalid(f"the body is not valid JSON: {first['ctx']['error']}", None)
    if kind == "extra_forbidden":
        return invalid(f"{path or repr(path)} is not a parameter this endpoint knows", path, code="unknown_parameter")
    if not path and kind == "string_unicode":  # a name, which no path can have in it
        return invalid(f"the body has a name that is not valid Unicode: {shown(first.get('input'))}", None)
    if not path:
        return invalid("the body must be a JSON object, sent as application/json", None)
    if kind == "missing":
        return invalid(f"{path} is required", path, code="missing_required_parameter")
    if kind.startswith("union_tag_") and "discriminator" in first["ctx"]:
        return _wrong_tag(path, first)
    message = f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}; got {shown(first.get('input'))}"
    return invalid(message, path, code="unsupported_parameter" if kind == "unsupported" else "invalid_value")


def _wrong_tag(path: str, error: Mapping[str, Any]) -> ApiError:
    """For one of several forms, told apart by a field (``type``, ``role``) that has none of their names."""
    context = error["ctx"]
    where = f"{path}.{context['discriminator'].strip(chr(39))}"
    if error["type"] == "union_tag_not_found":
        return invalid(f"{where} is required", where, code="missing_required_parameter")
    got = shown(context["tag"])
    return invalid(f"{where} must be one of {context['expected_tags']}; got {got}", where, code="invalid_value")


def _first(errors: Sequence[Any]) -> Any:
    first = errors[0]
    if first["type"] != "missing":
        return first
    beside = (each for each in errors if each["type"] == "extra_forbidden" and each["loc"][:-1] == first["loc"][:-1])
    return next(beside, first)


def _path(loc: Sequence[int | str], body: Any) -> str:
    """``("body", "messages", 0, "user", "content")`` as ``messages[0].content``.

    Names that pydantic adds (which of several forms it tried) stand in no body and are left out; the last one is kept,
    for a field that is missing stands in none either.
    """
    path, value = "", body
    places = list(loc[1:])
    for place_number, place in enumerate(places):
        last = place_number == len(places) - 1
        if isinstance(place, int):
            if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and place < len(value):
                value = value[place]
                path += f"[{place}]"
        elif isinstance(value, Mapping) and place in value:
            value = value[place]
            path += f".{place}" if path else place
        elif last and isinstance(value, Mapping):
            path += f".{place}" if path else place
    return path
