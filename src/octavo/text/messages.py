"""Messages and tools as a template may see them: checked, copied, and made of plain JSON values only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError, shown

Message = dict[str, Any]

SYSTEM_ROLES = ("system", "developer")
"""The later name means the same."""

CACHE_MARKERS = ("cache_control", "prompt_cache_breakpoint")
"""Keys that mark breakpoints. They never reach a template: a marker must not change a token."""

JOINER = "\n"
"""What stands between the text parts of one message where the template takes no lists."""

_MAX_DEPTH = 64
_MAX_VALUES = 1_000_000
_MAX_BITS = 14_000
"""Of a whole number: Python writes no more than 4,300 digits."""
_REASONING = ("reasoning_content", "thinking", "reasoning")


def checked_messages(messages: object) -> list[Message]:
    """Copy ``messages``, refusing what is not a conversation.

    A message is ``{"role": str, "content": str | list of {"type": "text", "text": str}, ...}``. Only an
    assistant's that carries ``tool_calls`` may lack content. Keys that hold ``None`` are dropped (clients
    send them, templates stumble over them), and so are cache markers. Reasoning is found under any of its
    usual names. Arguments of tool calls may be a JSON object or its text, and become an object with its keys in
    their order. Other keys pass through as they are.

    Raises:
        InvalidRequestError: with ``param`` naming the place, such as ``messages[2].content``.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def checked_objects(objects: object, param: str) -> list[dict[str, Any]] | None:
    """Copy a list of JSON objects (tools, documents) without cache markers. ``None`` stays ``None``.

    Raises:
        InvalidRequestError: it is not a list of JSON objects; the message calls it ``param``.
    """
    if objects is None:
        return None
    if not isinstance(objects, Sequence) or isinstance(objects, str):
        raise InvalidRequestError(f"{param} must be a list of JSON objects", param=param)
    return [_object(item, f"{param}[{index}]") for index, item in enumerate(objects)]


def plain(value: object, param: str, depth: int = 0, left: Iterator[int] | None = None) -> Any:
    """Copy ``value``, which must be made of JSON's types only: a template can call no method of anything
    else.

    Raises:
        InvalidRequestError: something else is in it, it is nested more than 64 deep, or it has more than a million
            values (a few lists that hold each other can have any number of them).
    """
    left = iter(range(_MAX_VALUES)) if left is None else left
    if next(left, None) is None:
        raise InvalidRequestError(f"{param} is one value too many; at most {_MAX_VALUES:,} are allowed", param=param)
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{param} is nested more than {_MAX_DEPTH} deep", param=param)
    if value is None or type(value) in (str, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise InvalidRequestError(f"{param} is a whole number of too many digits to be written", param=param)
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidRequestError(f"{param} must have text keys; it has {shown(key)}", param=param)
        return {str.__str__(key): plain(item, f"{param}.{key}", depth + 1, left) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{param}[{index}]", depth + 1, left) for index, item in enumerate(value)]
    raise InvalidRequestError(f"{param} must be made of JSON values; it holds a {type(value).__name__}", param=param)


def leading_system(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many system messages a conversation begins with."""
    return next((at for at, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES), len(messages))


def text_parts(message: Message) -> list[str]:
    """The texts of a checked message: one for content that is a string."""
    content = message.get("content", "")
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def with_parts(message: Message, parts: list[str]) -> Message:
    """The message with other texts, in the form (string or list) its content has."""
    if isinstance(message.get("content", ""), str):
        return {**message, "content": JOINER.join(parts)}
    return {**message, "content": [{"type": "text", "text": text} for text in parts]}


def flattened(message: Message) -> Message:
    """The message with its text parts joined into one string by :data:`JOINER`."""
    return {**message, "content": JOINER.join(text_parts(message))}


def _message(message: object, param: str) -> Message:
    copy = {key: value for key, value in _object(message, param).items() if value is not None}
    role = copy.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{param}.role must be text such as 'user'; got {shown(role)}", param=f"{param}.role")
    if "content" in copy:
        copy["content"] = _content(copy["content"], f"{param}.content")
    elif not (role == "assistant" and copy.get("tool_calls")):
        raise InvalidRequestError(
            f"{param} has no content; only an assistant message with tool_calls may lack it",
            param=f"{param}.content",
        )
    if "tool_calls" in copy:
        copy["tool_calls"] = _tool_calls(copy["tool_calls"], f"{param}.tool_calls")
    reasoning = next((copy[name] for name in _REASONING if name in copy), None)
    if reasoning is not None:
        copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
    return copy


def _object(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{param} must be a JSON object; got {type(value).__name__}", param=param)
    copy: dict[str, Any] = plain({key: item for key, item in value.items() if key not in CACHE_MARKERS}, param)
    return copy


def _content(content: object, param: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"{param} must be text or a list of text parts; got {type(content).__name__}", param=param
        )
    parts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequestError(
                f'{param}[{index}] must be {{"type": "text", "text": ...}}, for Octavo runs text models; '
                f"got {shown(kind)}",
                param=f"{param}[{index}]",
            )
        parts.append({"type": "text", "text": part["text"]})
    return parts


def _tool_calls(calls: object, param: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{param} must be a list; got {type(calls).__name__}", param=param)
    checked = []
    for index, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f'{param}[{index}] must be {{"function": {{"name": ..., "arguments": ...}}}}; got {shown(call)}',
                param=f"{param}[{index}]",
            )
        where = f"{param}[{index}].function" if "function" in call else f"{param}[{index}]"
        read = {**function, "arguments": _arguments(function.get("arguments"), f"{where}.arguments")}
        checked.append({**call, "function": read} if "function" in call else read)
    return checked


def _arguments(arguments: object, param: str) -> dict[str, Any]:
    """A call's arguments as an object; none, or no text, are those of a function that takes none."""
    value = arguments
    if isinstance(arguments, str) and arguments.strip():
        try:
            value = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            value = None
    elif arguments is None or isinstance(arguments, str):
        value = {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{param} must be a JSON object, or its text; got {shown(arguments)}", param=param)
    copy: dict[str, Any] = plain(value, param)
    return copy


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
