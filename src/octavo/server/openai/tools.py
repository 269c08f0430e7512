"""Tools of a request and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, Tag

from octavo.errors import shown
from octavo.server.errors import invalid
from octavo.server.openai.fields import Markable, refused, told_apart
from octavo.server.validation import Body

_WORDS = ("none", "auto", "required")
_NO_CUSTOM = "Custom tools cannot be called; describe a function"


class Function(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Markable):
    type: Literal["function"]
    function: Function
    custom: Annotated[None, refused(_NO_CUSTOM)] = None


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def choice_form(value: Any) -> str | None:
    """Which form of a tool_choice this is, by its tag."""
    if isinstance(value, str):
        return "(word)"
    if not isinstance(value, dict):
        return None
    return "(allowed)" if value.get("type") == "allowed_tools" else "(named)"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(word)")]
    | Annotated[NamedTool, Tag("(named)")]
    | Annotated[AllowedToolChoice, Tag("(allowed)")],
    told_apart(choice_form, "'none', 'auto', 'required', or an object that names a function or allowed tools"),
]


class Choice(NamedTuple):
    """A choice in the words of :class:`octavo.server.requests.ChatRequest`."""

    tool_choice: str
    allowed_tools: frozenset[str] | None = None


def template_tools(tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """Tools as chat templates have them, with their cache markers."""
    return [tool.model_dump(exclude_none=True) for tool in tools]


def chosen(choice: str | NamedTool | AllowedToolChoice | None, names: Sequence[str] | None) -> Choice:
    """What ``choice`` asks for, among tools of these names; ``None``: those of a named cache, which checks it.

    Raises:
        ApiError: it names a tool that there is not, or wants a call where there are no tools (400).
    """
    if choice is None:
        return Choice("auto")
    if isinstance(choice, str):
        if choice == "required" and names is not None and not names:
            raise invalid("tool_choice is 'required', but there are no tools to call", "tool_choice")
        return Choice(choice)
    if isinstance(choice, NamedTool):
        name = choice.function.name
        _check_known([name], names)
        if name in _WORDS:
            raise invalid(f"a function that is called {name!r} cannot be chosen by its name", "tool_choice")
        return Choice(name)
    allowed = [tool.function.name for tool in choice.allowed_tools.tools]
    _check_known(allowed, names)
    return Choice(choice.allowed_tools.mode, frozenset(allowed))


def _check_known(wanted: Sequence[str], names: Sequence[str] | None) -> None:
    if names is None:
        return
    known_names = frozenset(names)
    unknown = next((name for name in wanted if name not in known_names), None)
    if unknown is not None:
        known = f"the tools are {', '.join(map(shown, names))}" if names else "there are no tools"
        raise invalid(f"tool_choice names {shown(unknown)}, but {known}", "tool_choice")
