"""Phi-4-mini: calls between two markers, as a list, or (some templates) one in each pair::

<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}]<|/tool_call|>
"""

from __future__ import annotations

from dataclasses import replace

from octavo.text.tools.call_body import CallList
from octavo.text.tools.tool_format import ToolFormat

PHI4 = ToolFormat(
    name="phi4",
    begin="<|tool_call|>",
    opening="[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    joiner=", ",
    closing="]<|/tool_call|>",
    end="<|/tool_call|>",
    body=lambda: CallList("<|/tool_call|>"),
    tokens=("<|tool_call|>", "<|/tool_call|>"),
)

PHI4_SINGLE = replace(PHI4, opening="", joiner=None, closing="<|/tool_call|>")
