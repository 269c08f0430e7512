"""ReplyFormat: what a model's replies look like, and what holds them to a request. One for each chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.text.chat import ChatTemplate
from octavo.text.grammar import StructuredOutputsParams
from octavo.text.reasoning import END_THINK, THINK
from octavo.text.reply import ReplyParser
from octavo.text.tokenizer import Tokenizer
from octavo.text.tools.constraint import Calls, ReplyGrammar
from octavo.text.tools.tool_format import ToolFormat
from octavo.text.tools.toolset import check_size, read_tools

_CALLS: dict[str, Calls] = {"auto": "may", "required": "must", "none": "not"}


class ReplyFormat:
    """How a model writes calls and reasoning. Safe to use from several threads.

    Attributes:
        tool_format: how it writes calls.
        has_reasoning: whether it may reason between ``<think>`` and ``</think>`` first.
    """

    def __init__(self, tool_format: ToolFormat, tokenizer: Tokenizer, *, has_reasoning: bool) -> None:
        self.tool_format = tool_format
        self.has_reasoning = has_reasoning
        self._tokenizer = tokenizer

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer) -> ReplyFormat:
        """What ``template`` and the vocabulary tell: it has reasoning if either knows both of its markers."""
        in_vocabulary = all(tokenizer.token_id(marker) is not None for marker in (THINK, END_THINK))
        return cls(template.tool_format, tokenizer, has_reasoning=in_vocabulary or template.mentions(THINK, END_THINK))

    def parser(self, *, tools: bool, in_reasoning: bool) -> ReplyParser:
        """A parser for one reply.

        Args:
            tools: look for calls.
            in_reasoning: what :attr:`octavo.text.chat.RenderedChat.in_reasoning` says of the prompt.
        """
        return ReplyParser(
            tool_format=self.tool_format if tools else None, reasoning=self.has_reasoning, in_reasoning=in_reasoning
        )

    def skip_special_tokens(self, tools: bool) -> bool:
        """What a request must be sampled with: ``False`` where a marker the parser looks for is a special token."""
        markers = [*((THINK, END_THINK) if self.has_reasoning else ()), *(self.tool_format.tokens if tools else ())]
        return all(self._special_id(marker) is None for marker in markers)

    def constraint(
        self,
        *,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str,
        parallel: bool,
        output: StructuredOutputsParams | None,
        in_reasoning: bool,
    ) -> StructuredOutputsParams | None:
        """What the reply must look like; ``None`` if it may be any text.

        Args:
            tools: ``{"type": "function", "function": {...}}`` each; none of them: no calls, whatever is chosen.
            tool_choice: ``"auto"``: it may call. ``"required"``: it must, and says nothing else. ``"none"``: it
                cannot. Anything else is the name of the one tool it must call.
            parallel: several calls are allowed.
            output: what the answer must be where it does not call.
            in_reasoning: as for :meth:`parser`. Reasoning is free, and what is asked for follows it.

        Raises:
            InvalidRequestError: a tool is malformed, or its parameters cannot be enforced (``param`` is
                ``tools[i].function...``); or there is no tool of the name (``tool_choice``).
        """
        if not tools and (output is None or not self.has_reasoning):
            return output
        calls: Calls = _CALLS.get(tool_choice, "must") if tools else "not"
        if calls == "not" and output is not None and not self.has_reasoning:
            return output
        only = None if tool_choice in _CALLS else tool_choice
        read = read_tools(tools, only) if calls != "not" else []
        grammar = ReplyGrammar(
            self.tool_format, self._special_id, read, calls, parallel, None if calls == "must" else output
        )
        lark = grammar.lark(reasoning=self.has_reasoning, in_reasoning=in_reasoning)
        check_size(len(lark))
        return StructuredOutputsParams(grammar=lark)

    def _special_id(self, marker: str) -> int | None:
        token = self._tokenizer.token_id(marker)
        return token if token is not None and self._tokenizer.is_special(token) else None
