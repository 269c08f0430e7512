"""Which tool format a chat template is of, and what of tools it can show: found by rendering probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import TemplateError
from octavo.text.tools.granite import GRANITE
from octavo.text.tools.hermes import HERMES
from octavo.text.tools.llama3 import LLAMA3
from octavo.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from octavo.text.tools.phi4 import PHI4, PHI4_SINGLE
from octavo.text.tools.tool_format import ToolFormat

FORMATS = (HERMES, MISTRAL, MISTRAL_ARGS, LLAMA3, GRANITE, PHI4, PHI4_SINGLE)
"""All formats, in the order of the documentation; those of one name are spellings of one format."""

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""A template on messages and tools, ending after the last message."""

_TOOL, _VALUE, _RESULT, _SYSTEM = (
    "octavo_probe_tool",
    "octavo_probe_value",
    "octavo_probe_result",
    "octavo_probe_system",
)
_SHORT_ID, _LONG_ID = "octavo123", "call_octavo_probe_0123456789"
_USER = {"role": "user", "content": "octavo_probe_question"}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "A probe.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
]


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a template does with tools.

    Attributes:
        tool_format: how its model writes calls.
        shows_tools: it takes ``tools``. Where it does not, nothing below is asked of it.
        shows_calls: it takes an assistant's ``tool_calls``.
        wants_content: but only beside ``content``, if that is empty.
        shows_results: it takes the role ``tool``.
        short_ids: it refuses ids of calls that do not have nine letters or digits.
        takes_system: it takes the role ``system``.
        wants_turns: it refuses two messages of a user in a row.
    """

    tool_format: ToolFormat
    shows_tools: bool
    shows_calls: bool
    wants_content: bool
    shows_results: bool
    short_ids: bool
    takes_system: bool
    wants_turns: bool


def detect(render: Render, source: str) -> ToolSupport:
    """Probe a template; ``source`` is read only where the probes tell nothing."""
    shows_tools = _shows(render, [_USER], _TOOL)
    call = _Call(render) if shows_tools else None
    shows_calls = call is not None and call.text is not None
    return ToolSupport(
        tool_format=_format(call.text if call else None, source) if shows_tools else HERMES,
        shows_tools=shows_tools,
        shows_calls=shows_calls,
        wants_content=call is not None and call.wants_content,
        shows_results=call is not None and call.shows_results,
        short_ids=call is not None and call.short_ids,
        takes_system=_shows(render, [{"role": "system", "content": _SYSTEM}, _USER], _SYSTEM, with_tools=False),
        wants_turns=not _shows(render, [_USER, {**_USER, "content": _VALUE}], _VALUE, with_tools=False),
    )


class _Call:
    """How a template shows a call: the text from the end of the user's message to the end of the call's name."""

    def __init__(self, render: Render) -> None:
        self.text: str | None = None
        self.wants_content = self.short_ids = False
        for self.wants_content in (False, True):
            for self.short_ids in (False, True):
                self.text = self._shown(render)
                if self.text is not None:
                    self.shows_results = _shows(render, [_USER, self._message(), self._result()], _RESULT)
                    return
        self.wants_content = self.short_ids = False
        written_out = {"role": "assistant", "content": "octavo_probe_call"}
        self.shows_results = _shows(render, [_USER, written_out, self._result()], _RESULT)

    def _shown(self, render: Render) -> str | None:
        """What stands around the call, if name and arguments come out."""
        # The tools may stand behind the user's message, so they are left out if they can be.
        for tools in (None, _TOOLS):
            try:
                text = render([_USER, self._message()], tools)
            except TemplateError:
                continue
            _, _, text = text.rpartition(str(_USER["content"]))
            return text if _TOOL in text and _VALUE in text else None
        return None

    def _message(self) -> dict[str, Any]:
        function = {"name": _TOOL, "arguments": {"key": _VALUE}}
        call = {"id": self._id(), "type": "function", "function": function}
        message = {"role": "assistant", "tool_calls": [call]}
        return {**message, "content": ""} if self.wants_content else message

    def _result(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self._id(), "name": _TOOL, "content": _RESULT}

    def _id(self) -> str:
        return _SHORT_ID if self.short_ids else _LONG_ID


def _shows(render: Render, messages: list[dict[str, Any]], wanted: str, with_tools: bool = True) -> bool:
    try:
        return wanted in render(messages, _TOOLS if with_tools else None)
    except TemplateError:
        return False


def _format(call: str | None, source: str) -> ToolFormat:
    """The format by what a template wrote; by what stands in it, where it shows no call."""
    text = source if call is None else call
    if "[TOOL_CALLS]" in text:
        if "[ARGS]" in text:
            return MISTRAL_ARGS
        return replace(MISTRAL, opening=" [") if "[TOOL_CALLS] [" in text else MISTRAL
    if "<tool_call>" in text:
        return HERMES
    if "<|tool_call|>" in text:
        if "<|/tool_call|>" not in text:
            return GRANITE
        return PHI4_SINGLE if "<|tool_call|>{" in text else PHI4
    if '{"name": "' in text and '"parameters": ' in text:
        return LLAMA3
    return HERMES
