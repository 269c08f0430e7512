"""Hermes: one ``<tool_call>`` block per call.

Qwen2, Qwen2.5, Qwen3, SmolLM3 and Granite 4 write this, and every model whose template knows no tools is asked to::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Bern"}}
    </tool_call>
"""

from __future__ import annotations

from octavo.text.tools.call_body import CallList
from octavo.text.tools.tool_format import ToolFormat

HERMES = ToolFormat(
    name="hermes",
    begin="<tool_call>",
    opening="\n",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    closing="\n</tool_call>",
    end="</tool_call>",
    between="\n",
    body=lambda: CallList("</tool_call>"),
    tokens=("<tool_call>", "</tool_call>"),
)
