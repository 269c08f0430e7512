"""What a request says beside its conversation: tools and their choice, thinking, the form of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Tag

from octavo.errors import InvalidRequestError
from octavo.server.anthropic.fields import WRAPPED, CacheControl, by_type
from octavo.server.errors import invalid
from octavo.server.validation import Body, unsupported
from octavo.text.grammar import StructuredOutputsParams, schema_problem
from octavo.text.messages import plain

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _custom(value: Any) -> Any:
    if value not in (None, "custom"):
        raise unsupported("only custom tools work here, with a name and an input_schema")
    return value


def _direct(value: Any) -> Any:
    if value not in (None, ["direct"]):
        raise unsupported("only ['direct'] works here, for nothing but the model calls tools")
    return value


def _present(value: Any) -> Any:
    if value is True:
        raise unsupported("every tool is shown to the model at once; leave it out")
    return value


class Tool(Body):
    """A tool that the client runs."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_custom)] = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None
    allowed_callers: Annotated[list[str] | None, BeforeValidator(_direct)] = None
    defer_loading: Annotated[bool | None, BeforeValidator(_present)] = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None

    def function(self) -> dict[str, Any]:
        """As chat templates have it."""
        described = {} if self.description is None else {"description": self.description}
        strict = {"strict": True} if self.strict else {}
        function = {"name": self.name, **described, "parameters": self.input_schema, **strict}
        return {"type": "function", "function": function}


class AutoChoice(Body):
    type: Literal["auto"]
    disable_parallel_tool_use: bool = False


class AnyChoice(Body):
    type: Literal["any"]
    disable_parallel_tool_use: bool = False


class ToolChoice(Body):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class NoChoice(Body):
    type: Literal["none"]


Choice: TypeAlias = Annotated[
    Annotated[AutoChoice, Tag("(auto)")]
    | Annotated[AnyChoice, Tag("(any)")]
    | Annotated[ToolChoice, Tag("(tool)")]
    | Annotated[NoChoice, Tag("(none)")],
    by_type("auto", "any", "tool", "none"),
]

Display = Literal["summarized", "omitted"]


class ThinkingEnabled(Body):
    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1024)]
    display: Display | None = None


class ThinkingAdaptive(Body):
    type: Literal["adaptive"]
    display: Display | None = None


class ThinkingDisabled(Body):
    type: Literal["disabled"]


Thinking: TypeAlias = Annotated[
    Annotated[ThinkingEnabled, Tag("(enabled)")]
    | Annotated[ThinkingAdaptive, Tag("(adaptive)")]
    | Annotated[ThinkingDisabled, Tag("(disabled)")],
    by_type("enabled", "adaptive", "disabled"),
]


class JSONFormat(Body):
    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    format: JSONFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(Body):
    user_id: Annotated[str, Field(max_length=512)] | None = None


class KeepThinking(Body):
    """An edit that takes nothing away, which some clients send with every request."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """Edits of the conversation before the model sees it: those alone that change nothing."""

    edits: list[KeepThinking] | None = None


class Diagnostics(Body):
    previous_message_id: str | None = None


def functions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates have them.

    Raises:
        ApiError: two have one name, or a schema describes something else than an object.
        InvalidRequestError: a schema is nested too deep.
    """
    taken: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.name in taken:
            raise invalid(f"{where}.name is taken: two tools are called {tool.name!r}", f"{where}.name")
        taken.add(tool.name)
        plain(tool.input_schema, f"{where}.input_schema", WRAPPED)
        kind = tool.input_schema.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise invalid(
                f"{where}.input_schema.type must be 'object', for a tool's input is one; got {kind!r}",
                f"{where}.input_schema.type",
            )
    return [tool.function() for tool in tools]


def choice_name(choice: Choice | None, tools: Sequence[Tool] | None) -> str:
    """``tool_choice`` as :class:`octavo.server.requests.ChatRequest` has it. ``tools=None``: they are those of a named
    cache, which checks it.

    Raises:
        ApiError: it wants a call, and there is no such tool.
    """
    if choice is None:
        return "auto"
    if not isinstance(choice, ToolChoice):
        if choice.type == "any" and tools is not None and not tools:
            raise invalid("tool_choice is 'any', but the request has no tools", "tool_choice")
        return _CHOICES[choice.type]
    if tools is not None and not any(tool.name == choice.name for tool in tools):
        known = ", ".join(repr(tool.name) for tool in tools) or "none"
        raise invalid(f"tool_choice.name is {choice.name!r}, but the tools are {known}", "tool_choice.name")
    if choice.name in ("auto", "required", "none"):
        raise invalid(f"tool_choice.name: a tool called {choice.name!r} cannot be forced", "tool_choice.name")
    return choice.name


def structured_outputs(form: JSONFormat, where: str) -> StructuredOutputsParams:
    """What holds the output to ``form``; ``where``: the field it came in.

    Raises:
        ApiError: no output can be held to it.
    """
    field = f"{where}.schema"
    plain(form.json_schema, field, WRAPPED)
    try:
        params = StructuredOutputsParams(json=form.json_schema)
    except InvalidRequestError as error:  # it calls the field by the engine's name
        raise invalid(f"{field} {str(error).partition(' ')[2]}", field) from error
    problem = schema_problem(str(params.json))
    if problem is not None:
        raise invalid(f"{field} cannot be enforced: {problem}", field)
    return params
