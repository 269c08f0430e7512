"""Contents: what a prompt consists of up to each place where a breakpoint can stand, as one name for all of it.

The APIs keep prefixes of whole blocks. Tokens alone do not show where a block ends::

    |tool 0|tool 1|You are a librarian.|           a system block, kept
    |tool 0|tool 1|You are a librarian. Be brief.| another block, though all tokens of the old one are reused

So a name stands for the tools, the texts and the calls up to a place, each to its end. What else is in a message (its
reasoning, ids of calls) has no part in it: whether that changes a prompt its tokens show.
"""

from __future__ import annotations

import json
from hashlib import sha256

from octavo.server.requests import ChatRequest
from octavo.text.messages import CACHE_MARKERS, leading_system, text_parts
from octavo.text.places import Place


def place_names(request: ChatRequest) -> dict[Place, bytes]:
    """The name of all that stands up to each place, that place included. Takes milliseconds where much does."""
    names: dict[Place, bytes] = {}
    so_far = sha256()

    def name(place: Place, *contents: object) -> None:
        so_far.update(json.dumps(contents).encode())
        names[place] = so_far.digest()

    for index, tool in enumerate(request.tools):
        name(Place("tool", index), {key: value for key, value in tool.items() if key not in CACHE_MARKERS})
    leading, num_blocks = leading_system(request.messages), 0
    for index, message in enumerate(request.messages):
        role = message["role"]
        for part, text in enumerate(text_parts(message) if message.get("content") is not None else ()):
            if index < leading:
                name(Place("system", num_blocks), role, text)
                num_blocks += 1
            else:
                name(Place("message", index, part=part), role, text)
        for call, made in enumerate(message.get("tool_calls") or ()):
            function = made.get("function", made)
            name(Place("message", index, call=call), function.get("name"), function.get("arguments"))
        name(Place("message", index), role)
    return names
