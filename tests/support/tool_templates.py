"""Chat templates in our own words that show tools as published families of models do, and what goes with them."""

from __future__ import annotations

from typing import Any

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "weather_week", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
CALLS = [("weather", {"city": 'Köln "}"', "days": 3}), ("now", {})]

_HEAD = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
_END = "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
_SHOWN_TOOLS = "{%- if tools %}{{- '<tools>' }}{%- for t in tools %}{{- t | tojson }}{%- endfor %}{%- endif %}"
_PLAIN = _HEAD + "{{- m.content }}" + _END


def _with_calls(calls: str, before: str = _SHOWN_TOOLS) -> str:
    """A template that shows tools first of all, and calls like this."""
    return before + _HEAD + "{%- if m.content %}{{- m.content }}{%- endif %}" + calls + _END


_EACH = "{%- for c in m.tool_calls or [] %}"
_OBJECT = "{{- '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}' }}"
_IDS = "{%- if c.id | length != 9 %}{{- raise_exception('ids have nine letters') }}{%- endif %}"

TEMPLATES = {
    "plain": _PLAIN,
    "qwen": _with_calls(_EACH + "{{- '\\n<tool_call>\\n' }}" + _OBJECT + "{{- '\\n</tool_call>' }}{%- endfor %}"),
    # Takes tools and results, but an assistant's content alone: calls are not shown.
    "smollm3": _SHOWN_TOOLS.replace("<tools>", "Write <tool_call>, after <think> </think>: ") + _PLAIN,
    "mistral": _with_calls(
        "{%- if m.tool_calls %}{{- '[TOOL_CALLS] [' }}"
        + _EACH
        + _IDS
        + _OBJECT.replace("+ '}'", "+ ', \"id\": \"' + c.id + '\"}'")
        + "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']' }}{%- endif %}"
        + "{%- if m.role == 'tool' %}{%- if m.tool_call_id | length != 9 %}{{- raise_exception('nine') }}{%- endif %}"
        + "{{- m.tool_call_id }}{%- endif %}"
    ),
    "mistral_args": _with_calls(
        _EACH + "{{- '[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson) }}{%- endfor %}"
    ),
    "llama3": _with_calls(
        "{%- if m.tool_calls and m.tool_calls | length != 1 %}{{- raise_exception('one at a time') }}{%- endif %}"
        + _EACH
        + _OBJECT.replace("arguments\\\": '", "parameters\\\": '").replace('"arguments"', '"parameters"')
        + "{%- endfor %}"
    ),
    "granite": _SHOWN_TOOLS.replace("<tools>", "Answer with <|tool_call|> and a JSON list: ") + _PLAIN,
    "phi4": _SHOWN_TOOLS.replace("<tools>", "Write <|tool_call|>[...]<|/tool_call|>. ") + _PLAIN,
    "phi4_single": _with_calls(_EACH + "{{- '<|tool_call|>' }}" + _OBJECT + "{{- '<|/tool_call|>' }}{%- endfor %}"),
    # No role but user and assistant, in turns.
    "turns": (
        "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{- raise_exception('Roles must alternate user, assistant, ...') }}{%- endif %}"
        "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    ),
}

FORMATS = {
    "plain": "hermes",
    "qwen": "hermes",
    "smollm3": "hermes",
    "mistral": "mistral",
    "mistral_args": "mistral",
    "llama3": "llama3",
    "granite": "granite",
    "phi4": "phi4",
    "phi4_single": "phi4",
    "turns": "hermes",
}
"""The name of the format that each template is of."""

MARKERS = ["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>", "<|/tool_call|>"]
"""Markers that are special tokens in the models that have them."""
