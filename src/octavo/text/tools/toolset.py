"""Tools as a request gives them, read for the grammar that holds calls to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from octavo.errors import InvalidRequestError, shown
from octavo.text.grammar import MAX_SOURCE, schema_problem
from octavo.text.lark import JSON_STYLE
from octavo.text.messages import checked_objects
from octavo.text.tools.tool_format import NAME, to_json

_OPEN_ENDED = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "anyOf", "oneOf", "allOf")


class Tool(NamedTuple):
    """A function's name, and the JSON schema of its arguments as text."""

    name: str
    schema: str


def read_tools(tools: Sequence[Mapping[str, Any]], only: str | None = None) -> list[Tool]:
    """Read ``{"type": "function", "function": {"name", "description", "parameters", "strict"}}``.

    ``only``: the one that is wanted of them, by its name; the others' parameters do not matter.

    Raises:
        InvalidRequestError: a tool is not of that form, two have one name, or arguments of such a schema cannot be
            enforced (``param`` says where, such as ``tools[0].function.parameters``); or none is called ``only``
            (``tool_choice``).
    """
    functions = _functions(tools)
    if only is None:
        return _read_all(functions)
    for index, function in enumerate(functions):
        if function["name"] == only:
            return [_read(index, function)]
    known = ", ".join(shown(function["name"]) for function in functions)
    raise InvalidRequestError(f"tool_choice is {shown(only)}, but the tools are {known}", param="tool_choice")


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    functions: list[dict[str, Any]] = []
    taken: set[str] = set()
    for index, tool in enumerate(checked_objects(tools, "tools") or []):
        function = tool.get("function")
        where = f"tools[{index}].function"
        if not isinstance(function, dict):
            raise InvalidRequestError(f"{where} must be an object; got {shown(function)}", param=where)
        name = function.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{where}.name must be text without white space, quotes, brackets and backslashes; got {shown(name)}",
                param=f"{where}.name",
            )
        if name in taken:
            raise InvalidRequestError(f"{where}.name is taken: two tools are called {name!r}", param=f"{where}.name")
        taken.add(name)
        functions.append(function)
    return functions


def _read_all(functions: Sequence[dict[str, Any]]) -> list[Tool]:
    """Until they are more than one grammar may hold: to check a schema takes a while."""
    read: list[Tool] = []
    size = 0
    for index, function in enumerate(functions):
        read.append(_read(index, function))
        size += len(read[-1].name) + len(read[-1].schema)
        check_size(size)
    return read


def check_size(characters: int) -> None:
    """Raises InvalidRequestError: the tools of a request make a grammar that is too large."""
    if characters > MAX_SOURCE:
        raise InvalidRequestError(
            f"the tools' names and parameters make a grammar of {characters:,} characters or more; at most "
            f"{MAX_SOURCE:,} are allowed. Send fewer tools, or smaller schemas",
            param="tools",
        )


def _read(index: int, function: dict[str, Any]) -> Tool:
    where = f"tools[{index}].function.parameters"
    return Tool(function["name"], _schema(function.get("parameters"), where, strict=function.get("strict") is True))


def _schema(parameters: object, where: str, *, strict: bool) -> str:
    """The schema of the arguments, which are always an object.

    Where properties are listed and nothing says whether there may be others, there may not: a function takes the
    arguments it lists. Keywords that no grammar can follow (``uniqueItems``, ``not``, a ``format`` of one's own) hold a
    call to nothing, unless the tool is ``strict``: then they are refused.
    """
    if parameters is None:
        return to_json({"type": "object", "properties": {}, "additionalProperties": False})
    if not isinstance(parameters, dict):
        raise InvalidRequestError(f"{where} must be a JSON schema; got {shown(parameters)}", param=where)
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequestError(
            f"{where} must describe an object, for arguments are one; its type is {shown(kind)}", param=where
        )
    schema = {**parameters, "type": "object"}
    schema.pop("x-guidance", None)
    if "properties" in schema and not any(key in schema for key in _OPEN_ENDED):
        schema["additionalProperties"] = False
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError as error:  # a number that is none, or one with more digits than Python prints
        raise InvalidRequestError(f"{where} cannot be enforced: {error}", param=where) from error
    if len(text) > MAX_SOURCE:  # it is not even looked at: that would take seconds, and be remembered
        raise InvalidRequestError(
            f"{where} has {len(text):,} characters; at most {MAX_SOURCE:,} are allowed", param=where
        )
    problem = schema_problem(text)
    if problem is not None and not strict:
        text = json.dumps({**schema, "x-guidance": {**JSON_STYLE, "lenient": True}})
        problem = schema_problem(text)
    if problem is not None:
        raise InvalidRequestError(f"{where} cannot be enforced: {problem}", param=where)
    return text
