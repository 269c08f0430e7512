"""Granite 3: a list of calls after a marker, to the end of the answer::

<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}]
"""

from __future__ import annotations

from octavo.text.tools.call_body import CallList
from octavo.text.tools.tool_format import ToolFormat

GRANITE = ToolFormat(
    name="granite",
    begin="<|tool_call|>",
    opening="[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    joiner=", ",
    closing="]",
    body=CallList,
    tokens=("<|tool_call|>",),
)
