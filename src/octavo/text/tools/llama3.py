"""Llama 3: the call is the whole answer, as bare JSON, perhaps after ``<|python_tag|>``; one at a time::

{"name": "weather", "parameters": {"city": "Bern"}}
"""

from __future__ import annotations

from octavo.text.tools.call_body import CallList
from octavo.text.tools.tool_format import ToolFormat

LLAMA3 = ToolFormat(
    name="llama3",
    begin="<|python_tag|>",
    opening="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    closing="",
    bare=True,
    body=lambda: CallList(name_first=True),
    tokens=("<|python_tag|>",),
)
