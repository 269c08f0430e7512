"""What is asked, whichever dialect it came in: a conversation to be answered, or a prompt to be completed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.caching import Caching
from octavo.text.grammar import StructuredOutputsParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a dialect makes of a request for a chat.

    Attributes:
        messages: as chat templates have them; see :func:`octavo.text.messages.checked_messages`. An assistant's message
            without tool calls at the end is continued.
        sampling: everything but what holds the answer to a format.
        tools: ``{"type": "function", "function": {"name", "description", "parameters"}}`` each.
        tool_choice: ``"auto"``, ``"required"``, ``"none"``, or the name of the tool that must be called.
        allowed_tools: names of those tools that may be called, where the others are only shown; ``None``: all of them.
        parallel_tool_calls: whether one answer may hold several calls.
        output: what the answer must be where it does not call.
        template_kwargs: further variables of the chat template.
        caching: what is asked of the prompt cache.
        cache: name of the named cache that the conversation begins with.
    """

    messages: list[dict[str, Any]]
    sampling: SamplingParams
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = "auto"
    allowed_tools: Collection[str] | None = None
    parallel_tool_calls: bool = True
    output: StructuredOutputsParams | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    caching: Caching = field(default_factory=Caching)
    cache: str | None = None

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """Those of the tools that may be called."""
        if self.allowed_tools is None:
            return self.tools
        return [tool for tool in self.tools if tool["function"]["name"] in self.allowed_tools]

    @property
    def continues_final_message(self) -> bool:
        last = self.messages[-1] if self.messages else {}
        return last.get("role") == "assistant" and not last.get("tool_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """A prompt to be completed, which no template writes: a text, or token ids.

    Attributes:
        caching: what is asked of the prompt cache.
        cache: name of the named cache whose text stands before the prompt.
    """

    prompt: str | Sequence[int]
    sampling: SamplingParams
    caching: Caching = field(default_factory=Caching)
    cache: str | None = None
